"""Times the steps of programs in PyTorch, where a device is.

    python peer.py PROGRAM.npz... --json=FILE

Needs PyTorch, NumPy and `run_program.py` next to this file. Of a program it
takes sizes, dtype and batch. The step is what PyTorch's users write: a frozen
BERT, adapters after both sublayers, AdamW on adapters, LayerNorms and head,
gradients clipped to norm 1, autocast for bfloat16 with frozen weights kept in
bfloat16, no TensorFloat-32. The model is AdapterHub's `adapters` where that
can be imported, else the same layers written below. Weights are random. Each
step is timed twice, as it is and through `torch.compile`: the runners are
`adapters eager` and `adapters compile` with AdapterHub's model, else `torch
eager` and `torch compile`. FILE takes runs in the form of
`run_program.py`, and may hold all four; the ratios of JAX's rates to theirs are
printed at the end. Without CUDA the CPU computes.
"""

import datetime
import statistics
import sys
import time

import numpy as np
import run_program
import torch
from run_program import WARM_UP, Program, Refused
from torch import nn
from torch.nn import functional

try:
    import adapters
except ImportError:
    adapters = None

LEARNING_RATE = 1e-4
ACTIVATIONS = {
    "gelu": nn.GELU(approximate="tanh"),
    "gelu_new": nn.GELU(approximate="tanh"),
    "gelu_erf": nn.GELU(),
}


class Adapter(nn.Module):
    """float [B, T, D] -> float [B, T, D], near the identity.

    Source: Houlsby et al. 2019, section 2.1.
    """

    def __init__(self, hidden, size):
        super().__init__()
        self.down, self.up = nn.Linear(hidden, size), nn.Linear(size, hidden)
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        self.act = ACTIVATIONS["gelu"]

    def forward(self, x):
        """Adds the bottleneck's output."""
        return x + self.up(self.act(self.down(x)))


class Layer(nn.Module):
    """A layer of BERT with two adapters."""

    def __init__(self, sizes, adapter):
        super().__init__()
        hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
        self.heads = sizes["num_attention_heads"]
        self.query, self.key, self.value, self.attended = (
            nn.Linear(hidden, hidden) for _ in range(4)
        )
        self.inner, self.outer = (
            nn.Linear(hidden, inner),
            nn.Linear(inner, hidden),
        )
        self.act = ACTIVATIONS[sizes["hidden_act"]]
        epsilon = sizes["layer_norm_eps"]
        self.norm1, self.norm2 = (
            nn.LayerNorm(hidden, eps=epsilon) for _ in range(2)
        )
        self.adapter1, self.adapter2 = (
            Adapter(hidden, adapter) for _ in range(2)
        )
        self.dropout = nn.Dropout(sizes["hidden_dropout_prob"])
        self.attention_dropout = sizes["attention_probs_dropout_prob"]

    def forward(self, x, mask):
        """float [B, T, D], bool [B, 1, 1, T] -> float [B, T, D]."""
        batch, length, hidden = x.shape
        shape = batch, length, self.heads, hidden // self.heads
        query, key, value = (
            project(x).view(shape).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        context = self.attended(context.transpose(1, 2).reshape(x.shape))
        x = self.norm1(x + self.adapter1(self.dropout(context)))
        context = self.outer(self.act(self.inner(x)))
        return self.norm2(x + self.adapter2(self.dropout(context)))


class Classifier(nn.Module):
    """BERT with adapters, and a classifier on its pooler."""

    def __init__(self, sizes, adapter, labels):
        """Makes the model, with BERT's own parameters frozen."""
        super().__init__()
        hidden = sizes["hidden_size"]
        self.words, self.places, self.kinds = (
            nn.Embedding(sizes[name], hidden)
            for name in (
                "vocab_size",
                "max_position_embeddings",
                "type_vocab_size",
            )
        )
        for table in (self.words, self.places, self.kinds):
            nn.init.normal_(table.weight, std=0.02)
        self.norm = nn.LayerNorm(hidden, eps=sizes["layer_norm_eps"])
        self.dropout = nn.Dropout(sizes["hidden_dropout_prob"])
        self.layers = nn.ModuleList(
            Layer(sizes, adapter) for _ in range(sizes["num_hidden_layers"])
        )
        self.pooler = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, labels)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(
                any(part in name for part in ("norm", "adapter", "head"))
            )

    def forward(self, ids, kinds, mask):
        """int64 [B, T] each -> float [B, C]."""
        places = self.places.weight[: ids.shape[1]]
        x = self.words(ids) + places + self.kinds(kinds)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask[:, None, None].bool())
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.head(self.dropout(pooled))


def _hub_model(sizes, adapter, labels):
    from transformers import BertConfig, BertForSequenceClassification

    names = {"gelu": "gelu_new", "gelu_erf": "gelu"}
    config = {
        **sizes,
        "num_labels": labels,
        "hidden_act": names.get(sizes["hidden_act"], sizes["hidden_act"]),
    }
    bert = BertForSequenceClassification(BertConfig(**config))
    adapters.init(bert)
    bottleneck = adapters.DoubleSeqBnConfig(
        reduction_factor=sizes["hidden_size"] / adapter, non_linearity="gelu"
    )
    bert.add_adapter("task", config=bottleneck)
    bert.train_adapter("task")
    for name, parameter in bert.named_parameters():
        if "LayerNorm" in name:
            parameter.requires_grad_(True)
    return _Hub(bert)


class _Hub(nn.Module):
    """AdapterHub's model with the arguments of `Classifier`."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, kinds, mask):
        return self.model(
            input_ids=ids, token_type_ids=kinds, attention_mask=mask
        ).logits


def counts(program):
    """Units of the program's adapters, and classes.

    Raises:
        Refused: it is no classifier with adapters of the default method.
    """
    about = program.about
    shapes = {
        name: values["shape"]
        for group in ("frozen", "trained")
        for name, values in about[group].items()
    }
    sizes = {
        shape[1] for name, shape in shapes.items() if name.endswith("/weights1")
    }
    if (
        about["program"] != "run_classifier"
        or not about["method"].startswith("houlsby(")
        or about["bert"]["hidden_act"] not in ACTIVATIONS
        or len(sizes) != 1
    ):
        raise Refused(
            f"{program.path} is of {about['program']} with {about['method']}; "
            "expected a classifier with houlsby, whose step is written here"
        )
    return sizes.pop(), shapes["output_bias"][0]


def measure(program, compiled, steps):
    """Times the steps of one program.

    Args:
        program: that tells sizes and batch.
        compiled: whether through `torch.compile`.
        steps: number of steps.

    Returns:
        JSON's values, as of `run_program.measure`.

    Raises:
        Refused: the program is of another step, or gives no finite numbers.
        RuntimeError: the device fails.
    """
    about = program.about
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    make = Classifier if adapters is None else _hub_model
    model = make(about["bert"], *counts(program)).to(device)
    narrow = about["dtype"] == "bfloat16"
    for parameter in model.parameters():
        if narrow and not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trained,
        lr=LEARNING_RATE,
        weight_decay=0.01,
        fused=device.type == "cuda",
    )
    model.train(program.is_training)
    call = torch.compile(model) if compiled else model
    batch = {
        name: torch.from_numpy(value.astype("int64")).to(device)
        for name, value in program.group("batch").items()
    }
    inputs = [batch[n] for n in ("input_ids", "segment_ids", "input_mask")]
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=narrow)

    def train():
        with autocast:
            logits = call(*inputs)
            loss = functional.cross_entropy(logits.float(), batch["label_ids"])
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    @torch.inference_mode()
    def predict():
        with autocast:
            return call(*inputs)

    step = train if program.is_training else predict
    losses, seconds = [], []
    for _ in range(steps):
        began = time.perf_counter()
        outputs = step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        if program.is_training:
            losses.append(float(outputs))
    if not (np.isfinite(losses).all() and torch.isfinite(outputs).all()):
        raise Refused(f"{program.path}: PyTorch gives numbers not finite")
    median = statistics.median(seconds[WARM_UP:] or seconds)
    return {
        "trained_parameters": sum(p.numel() for p in trained),
        "compile_seconds": seconds[0],
        "steps": steps,
        "seconds": median,
        "rows_per_second": about["rows"] / median,
        **({"losses": losses} if losses else {}),
    }


def _run(program, compiled, steps):
    """A run of a program, as JSON's values."""
    packages = ["torch"] if adapters is None else ["torch", "adapters"]
    way = "compile" if compiled else "eager"
    # Some containers turn TensorFloat-32 on by a variable.
    torch.set_float32_matmul_precision("highest")
    try:
        is_cuda = torch.cuda.is_available()
        return {
            **run_program.summary_of(program),
            "runner": f"{packages[-1]} {way}",
            "device": torch.cuda.get_device_name() if is_cuda else "cpu",
            "versions": {n: run_program.version(n) for n in packages},
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            **measure(program, compiled, steps),
            "tensor_float_32": torch.backends.cuda.matmul.allow_tf32,
        }
    except RuntimeError as error:
        why = run_program.first_line(error)
        raise Refused(f"{program.path}: PyTorch fails: {why}") from error


def ratios(runs):
    """Lines that tell how fast JAX's runs are, measured by PyTorch's."""
    rates = {(r["name"], r["device"], r["runner"]): r for r in runs}
    for (name, device, runner), run in rates.items():
        ours = rates.get((name, device, "jax"))
        if ours and runner != "jax":
            ratio = ours["rows_per_second"] / run["rows_per_second"]
            yield f"{name} on {device}: jax / {runner} = {ratio:.2f}"


def main():
    """Times the programs; see the file's description.

    Raises:
        Refused: arguments, or the file of results.
        SystemExit: a program was not timed.
    """
    arguments = run_program.arguments_of(__doc__)
    failures = 0
    print(run_program.HEAD, flush=True)
    for path in arguments.programs:
        for compiled in (False, True):
            try:
                run = _run(Program(path), compiled, arguments.steps)
                run_program.write_run(arguments.json, run)
            except Refused as error:
                failures += 1
                print(f"error: {error}", file=sys.stderr, flush=True)
                continue
            print(run_program.line(run), flush=True)
            torch.compiler.reset()
    for line in ratios(run_program.read_runs(arguments.json)):
        print(line)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    run_program.run(main)
