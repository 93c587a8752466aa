r"""Writes a BERT, a trained adapter or a training in another form.

    .venv/bin/adapter-bert convert --init_checkpoint=MODULE \
        --to=google --output_dir=BERT

A BERT alone stays bit for bit the same. Google's form is `bert_model.ckpt`,
`bert_config.json` and `vocab.txt`. Hugging Face's form is `model.safetensors`,
`config.json`, `vocab.txt` and `tokenizer_config.json`, which says whether text
is lower-cased. Heads are written too, with what the config says of them: labels
and kind. --adapter, or a training as --init_checkpoint, is merged into its
BERT.

The form `adapter_bert` is Google's with the adapters of
google-research/adapter-bert under that program's names.

Tokens that were added to a vocabulary stand in a `tokenizer_config.json` in
every form. Google's own programs read none.

The `gelu` of a BERT from Hugging Face uses the error function, which
Google's programs do not know. --activation=gelu writes theirs instead.
"""

from typing import Any, Dict

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import command_line, files
from adapter_bert.bert import encoder
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.checkpoints import (
    adapter_artifact,
    google,
    run_record,
    sources,
)
from adapter_bert.checkpoints.upstream_form import (
    ROWS,
    largest_difference,
    own_values,
)
from adapter_bert.checkpoints.weights import Pretrained, Weights, identify
from adapter_bert.checkpoints.written_form import (
    GOOGLE,
    HUGGING_FACE,
    OF_TRAINING,
    check_form,
    check_free,
    google_activation,
    read_values,
    write_model,
    write_vocabulary,
)
from adapter_bert.commands.merge import add, head_of, read_adapter
from adapter_bert.errors import UserError
from adapter_bert.methods import registry

ADAPTER_BERT = "adapter_bert"
ADAPTER_BIAS = "bert/encoder/layer_0/output/adapters/biases1"


def read_training(opened: Pretrained) -> adapter_artifact.Artifact:
    """What a training's checkpoint holds, as its adapter would hold it.

    Raises:
        UserError: the training is of several tasks, or a variable cannot be
            read.
    """
    run, weights = opened.run, opened.trained
    if "tasks" in run["task"]:
        raise UserError(
            f"{opened.path} is a training of several tasks; pass one task's "
            "folder adapter/ as --adapter, and the BERT as --init_checkpoint"
        )
    method = registry.parse(run["method"])
    names = [n for n in weights.shapes if n.split("/")[-1] not in OF_TRAINING]
    method, values = method.finish(
        run_record.bert_config(run, opened.path),
        {name: weights.read(name) for name in names},
    )
    shapes = {name: value.shape for name, value in values.items()}
    return adapter_artifact.Artifact(
        {**run, "method": str(method)},
        Weights(opened.path, shapes, values.__getitem__),
    )


def convert_plain(opened: Pretrained, config: BertConfig) -> Dict[str, Any]:
    """Arguments of `write_model` for a BERT without adapters."""
    values = read_values(opened.weights, encoder.list_variables(config))
    return {"config": config, "values": values, "head": opened.head}


def convert_trained(
    base: Weights, artifact: adapter_artifact.Artifact, form: str
) -> Dict[str, Any]:
    """Arguments of `write_model` for a BERT with an adapter and its head.

    Raises:
        UserError: the form cannot hold the method or the head.
    """
    if form != ADAPTER_BERT:
        return add(base, [artifact], [1.0])
    config = run_record.bert_config(artifact.config, artifact.weights.source)
    weights = artifact.weights
    trained = {name: weights.read(name) for name in weights.shapes}
    method = registry.parse(artifact.config["method"])
    values = own_values(config, method, base, trained)
    own, head = head_of(artifact, config)
    # The adapters are among the values.
    own = {n: x for n, x in own.items() if not n.startswith("bert/")}
    return {"config": config, "values": {**values, **own}, "head": head}


def main() -> None:
    """Converts the BERT that the arguments name."""
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--init_checkpoint",
        required=True,
        help="the BERT or the training to convert",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=(GOOGLE, HUGGING_FACE, ADAPTER_BERT),
        help="form to write",
    )
    parser.add_argument(
        "--adapter",
        default="",
        help="folder of a trained adapter of that BERT; default: the one in a "
        "training's checkpoint, or none",
    )
    parser.add_argument(
        "--activation",
        default="",
        choices=("gelu",),
        help="gelu: write the gelu of the error function as Google's, of tanh",
    )
    parser.add_argument(
        "--output_dir", required=True, help="folder for the result"
    )
    parser.add_argument(
        "--bert_config_file", default="", help="BERT's sizes; default: its own"
    )
    parser.add_argument(
        "--vocab_file",
        default="",
        help="the vocabulary; default: the BERT's own",
    )
    parser.add_argument(
        "--do_lower_case",
        type=str.lower,
        choices=("true", "false"),
        help="whether text is lower-cased; default: what the BERT or its "
        "vocabulary says",
    )
    arguments = parser.parse_args()
    folder = arguments.output_dir
    google.check_name(folder, "--output_dir")
    check_free(folder)
    form = arguments.to
    if arguments.activation and form == HUGGING_FACE:
        raise UserError(
            "--activation is of Google's programs, but --to=hugging_face holds "
            "any gelu; leave one of the two out"
        )
    opened = sources.open_init_checkpoint(arguments.init_checkpoint)
    artifact = None
    if arguments.adapter:
        if opened.trained is not None:
            raise UserError(
                f"{opened.path} is a training's checkpoint; pass the BERT as "
                "--init_checkpoint next to --adapter, or no --adapter"
            )
        artifact = read_adapter(opened.weights, arguments.adapter)
    elif opened.trained is not None:
        artifact = read_training(opened)
    elif form == ADAPTER_BERT:
        raise UserError(
            f"{opened.path} has no adapter to write for adapter-bert; pass "
            "--adapter, or a training as --init_checkpoint"
        )
    if artifact is None:
        config = sources.read_config(opened, arguments.bert_config_file)
    else:
        config = run_record.bert_config(
            artifact.config, artifact.weights.source
        )
    check_form(config, form)
    written = config
    if form != HUGGING_FACE:
        written = google_activation(config, arguments.activation)
    vocabulary = arguments.vocab_file or sources.find_vocabulary(opened)
    lower = {"true": True, "false": False, None: None}[arguments.do_lower_case]
    if lower is None and artifact is not None:
        lower = artifact.config["tokenizer"].get("do_lower_case")
    tokenizer = sources.read_tokenizer(opened, config, vocabulary, lower)
    lower = tokenizer.do_lower_case
    told = ""
    if artifact is None:
        found = convert_plain(opened, config)
        base = identify(opened.weights, encoder.list_variables(config))
        told = f"fingerprint {base.fingerprint[:12]}, "
    else:
        found = convert_trained(opened.weights, artifact, form)
    values = found["values"]
    size = 0
    if form == ADAPTER_BERT:
        size = values[ADAPTER_BIAS].shape[-1]
    worst = None
    if not same_activation(config.hidden_act, written.hidden_act):
        worst = largest_difference(config, written, values, size)
    files.prepare_folder(folder)
    said = {}
    if form == HUGGING_FACE:
        said = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    write_vocabulary(folder, vocabulary, tokenizer, **said)
    as_written = GOOGLE if form == ADAPTER_BERT else form
    path = write_model(folder, as_written, **{**found, "config": written})
    print(
        f"wrote {path}: {len(values)} variables, {told}"
        f"--do_lower_case={str(lower).lower()}"
    )
    if size:
        print(f"adapters of size {size}, hidden_size of feedforward_adapter")
    if worst is not None:
        print(
            f"hidden_act is {written.hidden_act}, not {config.hidden_act}: "
            f"the last layer's outputs for {ROWS} rows of random tokens differ "
            f"by at most {worst:.1e}"
        )
