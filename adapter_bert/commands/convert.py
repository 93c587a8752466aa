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
import os
from typing import Any, Optional

import adapter_bert.start_tensorflow  # noqa: F401

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.config import same_activation
from adapter_bert.checkpoints import (
    adapter_artifact,
    google,
    run_record,
    same_model,
    sentence_transformers,
    sources,
)
from adapter_bert.checkpoints.bert_flags import BertFiles, LetterCase
from adapter_bert.checkpoints.sentence_transformers import POOLINGS, Pooled
from adapter_bert.checkpoints.upstream_form import (
    ROWS,
    largest_difference,
    upstream_values,
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
    tokenizer_files,
    write_files,
    write_model,
)
from adapter_bert.commands.merge import (
    add,
    check_plain,
    head_of,
    read_adapter,
)
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import pooled_of
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import Topic
from adapter_bert.methods import registry
from adapter_bert.tasks.kinds import VECTORS, kind_of

ADAPTER_BERT, SENTENCES = "adapter_bert", "sentence_transformers"
ADAPTER_BIAS = "bert/encoder/layer_0/output/adapters/biases1"


@dataclasses.dataclass(frozen=True)
class Conversion(LetterCase, BertFiles):
    """Says what is written, and in which form."""

    REQUIRED = ("init_checkpoint", "to", "output_dir")
    to: Optional[str] = Topic.TO_DO.setting(
        None,
        "Form to write.",
        choices=(GOOGLE, HUGGING_FACE, SENTENCES, ADAPTER_BERT),
    )
    output_dir: str = Topic.TO_DO.setting("", "Folder for the result.")
    adapter: str = Topic.METHOD.setting(
        "",
        "Folder of a trained adapter of that BERT; default: the one in a "
        "training's checkpoint, or none.",
    )
    activation: Optional[str] = Topic.TO_DO.setting(
        None,
        "gelu: write the gelu of the error function as Google's, of tanh.",
        choices=("gelu",),
    )
    pooling: Optional[str] = Topic.TO_DO.setting(
        None,
        "Vectors of the form sentence_transformers: the first token's states, "
        "or their mean; default: as vectors were trained.",
        choices=POOLINGS,
    )
    normalize: Optional[bool] = Topic.TO_DO.setting(
        None,
        "Whether vectors of the form sentence_transformers get the length 1; "
        "default: as vectors were trained.",
    )


def read_training(opened: Pretrained) -> adapter_artifact.Artifact:
    """Reads a training's checkpoint as its adapter would hold it."""
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
    # A calibration, which follows a training, is in the adapter alone.
    folder = os.path.join(os.path.dirname(opened.path), "adapter")
    settings = adapter_artifact.settings_of(folder)
    return adapter_artifact.Artifact(
        {**run, "method": str(method), "task_settings": settings},
        Weights(opened.path, shapes, values.__getitem__),
    )


def find_artifact(
    settings: Conversion, opened: Pretrained
) -> Optional[adapter_artifact.Artifact]:
    """Reads the adapter that is written with a BERT, if there is one."""
    if settings.adapter:
        if opened.trained is not None:
            raise UserError(
                f"{opened.path} is a training's checkpoint; pass the BERT as "
                "--init_checkpoint next to --adapter, or no --adapter"
            )
        return read_adapter(opened.weights, settings.adapter)
    if opened.trained is not None:
        return read_training(opened)
    if settings.to == ADAPTER_BERT:
        raise UserError(
            f"{opened.path} has no adapter to write for adapter-bert; pass "
            "--adapter, or a training as --init_checkpoint"
        )
    return None


def read_pooled(
    settings: Conversion,
    opened: Pretrained,
    artifact: Optional[adapter_artifact.Artifact],
) -> Pooled:
    """Reads how vectors are made: the flags, else how they were trained."""
    pooled = opened.pooled
    training: dict[str, Any] = {}
    if artifact:
        training = artifact.config.get("training", {})
        if kind_of(artifact.config["task"]) == VECTORS:
            pooled = pooled_of(artifact)
    if pooled is None and settings.pooling is None:
        raise UserError(
            f"neither the adapter nor {opened.path} says how vectors are "
            f"pooled; pass --pooling={'|'.join(POOLINGS)}"
        )
    changes = {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "max_seq_length": training.get("max_seq_length"),
    }
    return dataclasses.replace(
        pooled or Pooled(settings.pooling, False),
        **{name: x for name, x in changes.items() if x is not None},
    )


def main() -> None:
    """Converts the BERT that the command line names."""
    settings, _ = read_command_line(Conversion, __doc__)
    folder, form = settings.output_dir, settings.to
    google.check_name(folder, "--output_dir")
    check_free(folder)
    is_hugging_face = form in (HUGGING_FACE, SENTENCES)
    if settings.activation and is_hugging_face:
        raise UserError(
            f"--activation is of Google's programs, but --to={form} holds any "
            "gelu; leave one of the two out"
        )
    of_vectors = settings.pooling, settings.normalize
    if form != SENTENCES and of_vectors != (None, None):
        raise UserError(
            f"--pooling and --normalize are for --to={SENTENCES}; leave them "
            "out"
        )
    opened = sources.open_init_checkpoint(settings.init_checkpoint)
    artifact = find_artifact(settings, opened)
    if artifact and form != SENTENCES:
        check_plain(artifact, artifact.weights.source)
    lower = settings.do_lower_case
    if artifact is None:
        config = sources.read_config(opened, settings.bert_config_file)
    else:
        config = run_record.bert_config(
            artifact.config, artifact.weights.source
        )
        if settings.bert_config_file:
            raise UserError(
                "an adapter says the sizes of its BERT; leave out "
                "--bert_config_file"
            )
        if lower is None:
            lower = artifact.config["tokenizer"].get("do_lower_case")
    as_written = HUGGING_FACE if is_hugging_face else GOOGLE
    check_form(config, as_written)
    pooled, written = None, config
    if form == SENTENCES:
        pooled = read_pooled(settings, opened, artifact)
    if not is_hugging_face:
        written = google_activation(config, settings.activation or "")
    vocabulary = settings.vocab_file or sources.find_vocabulary(opened)
    tokenizer = sources.read_tokenizer(opened, config, vocabulary, lower)
    fingerprint, size = "", 0
    base = identify(opened.weights, encoder.list_variables(config))
    if artifact is None:
        values, head = read_values(opened.weights, config), opened.head
        fingerprint = f"fingerprint {base.fingerprint[:12]}, "
    elif form == ADAPTER_BERT:
        trained = artifact.weights.read_all()
        method = registry.parse(artifact.config["method"])
        values = upstream_values(config, method, opened.weights, trained)
        size = values[ADAPTER_BIAS].shape[-1]
        of_head, head = head_of(artifact, config)
        values.update(of_head)
    else:
        # A head has no place among what makes vectors.
        merged = add(opened.weights, [artifact], [1.0], with_head=not pooled)
        values, head = merged["values"], merged["head"]
    if pooled:
        values = {n: x for n, x in values.items() if n.startswith("bert/")}
        head = {}
    difference = None
    if not same_activation(config.hidden_act, written.hidden_act):
        difference = largest_difference(config, written, values, size)
    if artifact:
        source = artifact.weights.source
        same_model.check(artifact.config, source, base, config, tokenizer)
    files.prepare_folder(folder)
    fields: dict[str, Any] = {}
    if is_hugging_face:
        if artifact:
            length = artifact.config.get("training", {}).get("max_seq_length")
        else:
            length = sources.longest_input(opened)
        fields = tokenizer_fields(config, tokenizer, length)
    write_files(folder, tokenizer_files(vocabulary, tokenizer, **fields))
    path = write_model(folder, as_written, written, values, head)
    if pooled:
        described = sentence_transformers.describe(pooled, config.hidden_size)
        write_files(folder, described)
    print(
        f"wrote {path}: {len(values)} variables, {fingerprint}"
        f"--do_lower_case={str(tokenizer.do_lower_case).lower()}"
    )
    if size:
        print(f"adapters of size {size}, hidden_size of feedforward_adapter")
    if difference is not None:
        print(
            f"hidden_act is {written.hidden_act}, not {config.hidden_act}: "
            f"the last layer's outputs for {ROWS} rows of random tokens differ "
            f"by at most {difference:.1e}"
        )
