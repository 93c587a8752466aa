"""Merges trained adapters into their BERT, or several of them into one.

    .venv/bin/adapter-bert merge --init_checkpoint=BERT \\
        --adapter=RUN/adapter --output_dir=MERGED

The result is a plain BERT in Google's form (`bert_model.ckpt`,
`bert_config.json`, `vocab.txt`). A model like BERT, as ELECTRA, is written in
Hugging Face's form instead. The result computes what BERT and adapter did. It
has the task's head if there is one adapter, of weight 1. The config then names
the head's labels and kind, as Hugging Face's configs do. The labels keep the
adapter's order. The `gelu` of a BERT from Hugging Face is called `gelu_erf`
there; Google's own program does not know this name.

The changes of several adapters are added up, each times its number in --weights
(task arithmetic, Ilharco et al. 2023). Methods that add computation to BERT
cannot be merged.

The result is an adapter if --by is given: a weighted sum of adapters of one
method, as linear, TIES, DARE or of LoRA's updates by an SVD. --average is the
weighted mean of their parameters, which all methods have (Chronopoulou et al.
2023).

    .venv/bin/adapter-bert merge --init_checkpoint=BERT --by=ties \\
        --density=0.5 --weights=1,0.5 --adapter=A --adapter=B --output_dir=NEW

Heads of one task have a mean, also if their labels have another order.
--head_of keeps task and head of one of the adapters instead.
"""

import collections
import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any, Callable, Optional

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.functional import LAYER_NORM_EPSILON
from adapter_bert.checkpoints import (
    adapter_artifact,
    google,
    run_record,
    same_model,
    sources,
)
from adapter_bert.checkpoints.bert_flags import BertFiles
from adapter_bert.checkpoints.hugging_face import CROSS_ENCODER
from adapter_bert.checkpoints.hugging_face_heads import (
    describe_head,
    pooler_of_layer,
)
from adapter_bert.checkpoints.merged_adapters import (
    merge_adapters,
    read_adapter,
)
from adapter_bert.checkpoints.weights import Weights, check_shape, identify
from adapter_bert.checkpoints.written_form import (
    GOOGLE,
    HUGGING_FACE,
    check_free,
    tokenizer_fields,
    tokenizer_files,
    write_files,
    write_model,
)
from adapter_bert.errors import UserError
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import NOT_NEGATIVE, POSITIVE, Topic
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.weighted_sums import (
    AVERAGE,
    FREQUENCY,
    SUMS,
    TOTAL,
    WeightedSum,
)
from adapter_bert.tasks import (
    calibration,
    from_description,
    kinds,
    multi_label,
)
from adapter_bert.tasks.novelty import warn_of_loss
from adapter_bert.tasks.text_regression import LabelUnit


def form_of(config: encoder.BertConfig) -> str:
    """Chooses the form of what is merged: Google's where it can describe it."""
    is_googles = (
        config.model_type == "bert"
        and config.tie_word_embeddings
        and config.layer_norm_eps == LAYER_NORM_EPSILON
    )
    return GOOGLE if is_googles else HUGGING_FACE


def read_all(
    base: Weights, folders: list[str]
) -> list[adapter_artifact.Artifact]:
    """Reads adapters without layers after BERT."""
    artifacts = [read_adapter(base, folder) for folder in folders]
    for artifact, folder in zip(artifacts, folders):
        check_plain(artifact, folder)
    return artifacts


def check_plain(artifact: adapter_artifact.Artifact, folder: str) -> None:
    """Refuses dense layers after BERT, which a plain BERT lacks."""
    if "dense" in artifact.config["task"]:
        raise UserError(
            f"{folder} has dense layers after BERT, which would be lost; "
            "adapter-bert convert --to=sentence_transformers writes them"
        )


def merged_values(
    config: encoder.BertConfig,
    method: TuningMethod,
    read: Callable[[str], np.ndarray],
    trained: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Merges variables of a BERT, each under the one name that it has."""
    merged = method.merge(
        config, lambda name: read(config.variable(name)), trained
    )
    values: dict[str, np.ndarray] = {}
    counts = collections.Counter(map(config.variable, merged))
    for name, value in merged.items():
        kept = config.variable(name)
        is_shared = kept != name
        if not np.array_equal(values.setdefault(kept, value), value) or (
            is_shared and counts[kept] < config.num_hidden_layers
        ):
            raise UserError(
                "the layers of the model, an ALBERT, share their kernels, but "
                f"{method} changes them otherwise in each layer; use the model "
                "and its adapter as they are"
            )
    return values


def add(
    base: Weights,
    artifacts: Iterable[adapter_artifact.Artifact],
    weights: list[float],
    with_head: bool = True,
) -> dict[str, Any]:
    """Adds adapters to their base, each times its weight.

    One alone brings its head, unless `with_head` is false.

    Returns:
        Arguments of `write_model`: `config`, `values` and `head`.
    """
    sums: dict[str, np.ndarray] = {}
    values: dict[str, np.ndarray] = {}
    config, head = None, {}
    for artifact, weight in zip(artifacts, weights):
        config = run_record.bert_config(
            artifact.config, artifact.weights.source
        )
        method = registry.parse(artifact.config["method"])
        trained = artifact.weights.read_all()
        merged = merged_values(config, method, base.read, trained)
        for name, value in merged.items():
            change = weight * (value - base.read(name))
            sums[name] = sums[name] + change if name in sums else change
        if weights == [1.0]:
            # Without the rounding of a sum of differences.
            values.update(merged)
            if with_head:
                head_values, head = head_of(artifact, config)
                values.update(head_values)
    for name in encoder.list_variables(config):
        if name in base.shapes and name not in values:
            change = sums.get(name)
            value = base.read(name)
            values[name] = value if change is None else value + change
    return {"config": config, "values": values, "head": head}


def head_of(
    artifact: adapter_artifact.Artifact, config: encoder.BertConfig
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns an adapter's head for a plain BERT, and fields of its config."""
    source, described = artifact.weights.source, artifact.config["task"]
    settings = artifact.config.get("task_settings", {})
    task = from_description.restore_task(described, settings, source)
    warn_of_loss(settings, source)
    least = described.get("label_threshold", multi_label.THRESHOLD)
    if least != multi_label.THRESHOLD:
        logging.warning(
            "%s gives labels from the probability %g on, for which a plain "
            "BERT has no place; pass --label_threshold=%g with it",
            source,
            least,
            least,
        )
    if "head" in described:
        raise UserError(
            f"{source} has a head of another form, {described['head']}, of "
            "which a plain BERT cannot tell; use the adapter as it is"
        )
    weights, kind = artifact.weights, kinds.kind_of(described)
    kinds.check_built_in(kind, source)
    if kind == kinds.VECTORS:
        return {}, {}
    labels = list(described.get("labels") or described.get("tags") or ())
    if kind in (kinds.CLASSIFICATION, kinds.MULTI_LABEL):
        # Google's program reads a head by the order of its labels.
        labels = list(task.labels)
        shape = len(labels), config.hidden_size
        check_shape(weights, "output_weights", shape)
        check_shape(weights, "output_bias", shape[:1])
    values = {
        name: weights.read(name)
        for name in weights.shapes
        if not name.startswith("bert/")
    }
    if not config.pooler:
        # The head's first layer is the pooler that the BERT lacked.
        values = pooler_of_layer(values)
    names = "output_weights", "output_bias"
    if task.chooses_one:
        joined = calibration.join(
            task.calibration, *map(weights.read, names), source
        )
        values.update(zip(names, joined))
    if kind == kinds.REGRESSION:
        # A plain BERT has no place for a unit.
        unit = LabelUnit.restore(described, source)
        values.update(zip(names, unit.join(*map(weights.read, names))))
    head = describe_head(kind, labels, config.model_type)
    if kind == kinds.RERANK:
        head[CROSS_ENCODER] = {"activation_fn": task.torch_activation}
    return values, head


def read_weights(text: str, count: int, positive: bool) -> list[float]:
    """Reads the weight of each of `count` adapters."""
    try:
        weights = list(map(float, text.split(","))) if text else [1.0] * count
    except ValueError:
        weights = [math.nan]
    least = 0.0 if positive else -math.inf
    if len(weights) != count or not all(least < w < math.inf for w in weights):
        raise UserError(
            f"--weights is {text!r}, expected {count} "
            f"{'positive ' if positive else ''}numbers with commas between "
            "them, one for each --adapter"
        )
    return weights


@dataclasses.dataclass(frozen=True)
class Merging(BertFiles):
    """Says what is merged, and how."""

    REQUIRED = ("init_checkpoint", "adapter", "output_dir")
    adapter: list[str] = Topic.METHOD.setting(
        [],
        "Folder of a trained adapter.",
        repeated=True,
    )
    output_dir: str = Topic.TO_DO.setting("", "Folder for the result.")
    weights: str = Topic.METHOD.setting(
        "", "One number per adapter, as 0.5,0.5; default: 1 each."
    )
    by: Optional[str] = Topic.METHOD.setting(
        None,
        "Write an adapter, not a BERT, and how adapters are added up.",
        choices=SUMS,
    )
    average: bool = Topic.METHOD.setting(
        False, "The mean of parameters, the same as --by=average."
    )
    density: Optional[float] = Topic.METHOD.setting(
        None, "Share of the values that TIES, DARE and pruning keep, as 0.5."
    )
    majority_sign: Optional[str] = Topic.METHOD.setting(
        None,
        "Whether signs are elected by sums or by counts; default: total.",
        choices=(TOTAL, FREQUENCY),
    )
    seed: Optional[int] = Topic.METHOD.setting(
        None, "Seed of the values that DARE keeps; default: 0.", NOT_NEGATIVE
    )
    rank: Optional[int] = Topic.METHOD.setting(
        None,
        "Rank of what an SVD makes; default: the greatest of the adapters.",
        POSITIVE,
    )
    head_of: str = Topic.METHOD.setting(
        "",
        "The --adapter whose task and head are kept, for adapters of several "
        "tasks; default: the mean of heads.",
    )

    @property
    def weighted_sum(self) -> Optional[WeightedSum]:
        """Says how adapters become one; None if they become a BERT."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(WeightedSum)
        }
        values["by"] = AVERAGE if self.average else self.by
        if self.head_of not in ("", *self.adapter):
            raise UserError(
                f"--head_of is {self.head_of!r}, expected one of the folders "
                "that are passed as --adapter"
            )
        if self.average and self.by not in (None, AVERAGE):
            raise UserError("--average and --by exclude each other")
        if values["by"]:
            return WeightedSum(**values)
        for name in (*values, "head_of"):
            if getattr(self, name) not in (None, ""):
                raise UserError(
                    f"--{name} is for an adapter made of several; pass --by, "
                    "as --by=linear"
                )
        return None


def main() -> None:
    """Merges the adapters that the arguments name."""
    settings, _ = read_command_line(Merging, __doc__)
    folder, adapters = settings.output_dir, settings.adapter
    google.check_name(folder, "--output_dir")
    how = settings.weighted_sum
    is_mean = how is not None and how.by == AVERAGE
    weights = read_weights(settings.weights, len(adapters), is_mean)
    if settings.bert_config_file:
        raise UserError(
            "adapters say the sizes of their BERT; leave out --bert_config_file"
        )
    opened = sources.open_untrained(settings.init_checkpoint)
    if how is not None:
        if files.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
            raise UserError(f"{folder} holds an adapter; choose another folder")
        description, values = merge_adapters(
            opened.weights, adapters, weights, how, settings.head_of
        )
        files.prepare_folder(folder)
        adapter_artifact.write(folder, description, values)
        print(f"the {'averaged' if is_mean else 'merged'} adapter is {folder}")
        return
    check_free(folder)
    artifacts = read_all(opened.weights, adapters)
    vocabulary = settings.vocab_file or sources.find_vocabulary(opened)
    config = run_record.bert_config(artifacts[0].config, adapters[0])
    form = form_of(config)
    fields: dict[str, Any] = {}
    lower = artifacts[0].config["tokenizer"].get("do_lower_case")
    tokenizer = sources.read_tokenizer(opened, config, vocabulary, lower)
    if form != GOOGLE:
        trainings = [a.config.get("training", {}) for a in artifacts]
        lengths = [x.get("max_seq_length") or 0 for x in trainings]
        fields = tokenizer_fields(config, tokenizer, max(lengths))
    model = add(opened.weights, artifacts, weights)
    base = identify(opened.weights, encoder.list_variables(config))
    for artifact, adapter in zip(artifacts, adapters):
        same_model.check(artifact.config, adapter, base, config, tokenizer)
    files.prepare_folder(folder)
    write_files(folder, tokenizer_files(vocabulary, tokenizer, **fields))
    prefix = write_model(folder, form, **model)
    print(f"the merged BERT is {prefix}")
