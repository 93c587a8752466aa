r"""Writes a BERT, a trained adapter or a training in another form.

    .venv/bin/adapter-bert convert --init_checkpoint=MODULE \
        --to=google --output_dir=BERT

A BERT alone stays bit for bit the same. Google's form is `bert_model.ckpt`,
`bert_config.json` and `vocab.txt`. Hugging Face's form is `model.safetensors`,
`config.json`, `vocab.txt` and `tokenizer_config.json`, which says whether text
is lower-cased. Models like BERT, as ELECTRA, are written in that form alone.
Heads are written too, with what the config says of them: labels and kind.
--adapter, or a training as --init_checkpoint, is merged into its BERT.

The form `sentence_transformers` is Hugging Face's with what makes vectors of
texts. An adapter of vectors says how, or a BERT in this form, else --pooling.

The form `adapter_bert` is Google's with the adapters of
google-research/adapter-bert under that program's names.

Tokens that were added to a vocabulary stand in a `tokenizer_config.json` in
every form. Google's own programs read none.

The `gelu` of a BERT from Hugging Face uses the error function, which
Google's programs do not know. --activation=gelu writes theirs instead.
"""

import dataclasses
from typing import Any, Optional

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
from adapter_bert.checkpoints.sentence_transformers import POOLINGS, Pooled
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
    tokenizer_fields,
    write_model,
    write_pooled,
    write_vocabulary,
)
from adapter_bert.commands.merge import add, head_of, read_adapter
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import pooled_of
from adapter_bert.methods import registry
from adapter_bert.tasks.kinds import VECTORS, kind_of

ADAPTER_BERT, SENTENCES = "adapter_bert", "sentence_transformers"
# Forms that are another one, and more.
WITH_MORE = {ADAPTER_BERT: GOOGLE, SENTENCES: HUGGING_FACE}
YES_NO = {"true": True, "false": False}
ADAPTER_BIAS = "bert/encoder/layer_0/output/adapters/biases1"


def read_training(opened: Pretrained) -> adapter_artifact.Artifact:
    """What a training's checkpoint holds, as its adapter would hold it."""
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


def convert_plain(opened: Pretrained, config: BertConfig) -> dict[str, Any]:
    """Arguments of `write_model` for a BERT without adapters."""
    values = read_values(opened.weights, config)
    return {"config": config, "values": values, "head": opened.head}


def convert_trained(
    base: Weights, artifact: adapter_artifact.Artifact, form: str
) -> dict[str, Any]:
    """Arguments of `write_model` for a BERT with an adapter and its head."""
    if form != ADAPTER_BERT:
        return add(base, [artifact], [1.0])
    config = run_record.bert_config(artifact.config, artifact.weights.source)
    weights = artifact.weights
    trained = {name: weights.read(name) for name in weights.shapes}
    method = registry.parse(artifact.config["method"])
    values = own_values(config, method, base, trained)
    of_head, head = head_of(artifact, config)
    return {"config": config, "values": {**values, **of_head}, "head": head}


def read_pooled(
    opened: Pretrained,
    artifact: Optional[adapter_artifact.Artifact],
    pooling: Optional[str],
    normalize: Optional[bool],
) -> Pooled:
    """How vectors are made: as the flags say, else as they were trained.

    Args:
        opened: the BERT.
        artifact: what was trained on it, or None.
        pooling: of the flag, or None.
        normalize: of the flag, or None.
    """
    pooled = opened.pooled
    if artifact and kind_of(artifact.config["task"]) == VECTORS:
        pooled = pooled_of(artifact)
    if pooling:
        pooled = dataclasses.replace(
            pooled or Pooled(pooling, False), pooling=pooling
        )
    if pooled is None:
        raise UserError(
            f"neither the adapter nor {opened.path} says how vectors are "
            f"pooled; pass --pooling={'|'.join(POOLINGS)}"
        )
    if normalize is not None:
        pooled = dataclasses.replace(pooled, normalize=normalize)
    training = artifact.config.get("training", {}) if artifact else {}
    if training.get("max_seq_length"):
        length = training["max_seq_length"]
        pooled = dataclasses.replace(pooled, max_seq_length=length)
    return pooled


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
        choices=(GOOGLE, HUGGING_FACE, SENTENCES, ADAPTER_BERT),
        help="form to write",
    )
    parser.add_argument(
        "--pooling",
        choices=POOLINGS,
        help="of vectors in the form sentence_transformers: the first token's "
        "states, or their mean; default: as vectors were trained",
    )
    parser.add_argument(
        "--normalize",
        type=str.lower,
        choices=tuple(YES_NO),
        help="whether vectors in the form sentence_transformers get the length "
        "1; default: as vectors were trained",
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
        choices=tuple(YES_NO),
        help="whether text is lower-cased; default: what the BERT or its "
        "vocabulary says",
    )
    arguments = parser.parse_args()
    folder = arguments.output_dir
    google.check_name(folder, "--output_dir")
    check_free(folder)
    form = arguments.to
    as_written = WITH_MORE.get(form, form)
    if arguments.activation and as_written == HUGGING_FACE:
        raise UserError(
            f"--activation is of Google's programs, but --to={form} holds any "
            "gelu; leave one of the two out"
        )
    for name in ("pooling", "normalize"):
        if getattr(arguments, name) and form != SENTENCES:
            raise UserError(
                f"--{name} is for --to={SENTENCES}; leave it out for {form}"
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
    check_form(config, as_written)
    written = config
    pooled = None
    if form == SENTENCES:
        pooled = read_pooled(
            opened,
            artifact,
            arguments.pooling,
            YES_NO.get(arguments.normalize),
        )
    if as_written != HUGGING_FACE:
        written = google_activation(config, arguments.activation)
    vocabulary = arguments.vocab_file or sources.find_vocabulary(opened)
    lower = YES_NO.get(arguments.do_lower_case)
    if lower is None and artifact is not None:
        lower = artifact.config["tokenizer"].get("do_lower_case")
    tokenizer = sources.read_tokenizer(opened, config, vocabulary, lower)
    lower = tokenizer.do_lower_case
    adapter_part = ""
    if artifact is None:
        converted = convert_plain(opened, config)
        base = identify(opened.weights, encoder.list_variables(config))
        adapter_part = f"fingerprint {base.fingerprint[:12]}, "
    else:
        converted = convert_trained(opened.weights, artifact, form)
    if pooled:
        # A head has no place among what makes vectors.
        encoder_values = {
            n: x
            for n, x in converted["values"].items()
            if n.startswith("bert/")
        }
        converted = {**converted, "values": encoder_values, "head": {}}
    values = converted["values"]
    size = 0
    if form == ADAPTER_BERT:
        size = values[ADAPTER_BIAS].shape[-1]
    worst = None
    if not same_activation(config.hidden_act, written.hidden_act):
        worst = largest_difference(config, written, values, size)
    files.prepare_folder(folder)
    fields = {}
    if as_written == HUGGING_FACE:
        fields = tokenizer_fields(config, tokenizer)
    write_vocabulary(folder, vocabulary, tokenizer, **fields)
    path = write_model(folder, as_written, **{**converted, "config": written})
    if pooled:
        write_pooled(folder, config, pooled)
    print(
        f"wrote {path}: {len(values)} variables, {adapter_part}"
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
