"""What the tests of exchanged adapters share with one another."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import foreign_adapters
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.adapterhub_setup import without_pooler
from adapter_bert.checkpoints.foreign_base import exported
from adapter_bert.checkpoints.weights import Weights
from adapter_bert.methods import registry
from adapter_bert.tasks.kinds import MASKED_LM, kind_of
from adapter_bert.tasks.masked_lm import MaskedLMHead, Masking
from lab.exchange import NUMBER, SPANS, THREE, outputs, random_artifact

GUESSES = {"name": MASKED_LM, **Masking().describe()}
TWO = "'a': pfeiffer(13), 'b': pfeiffer(7)"
HOULSBY = "houlsby({}, layer_norms=False)"
# What is written with one call: name -> method, task, of this project's.
SETUPS = {
    "stack_language": {
        "task": ("stack({'en': mad_x(13, 3)}, pfeiffer(7))", THREE)
    },
    "stack_two_trained": {
        "task": (
            "stack(prefix(length=7, reparameterize=False), "
            "parallel(13, scale=2.0))",
            NUMBER,
        )
    },
    "stack_dropped": {
        "task": (
            "stack({'a.b': adapterdrop(1, 'pfeiffer', 5)}, "
            f"{HOULSBY.format(13)})",
            SPANS,
        )
    },
    "average": {"mean": (f"average({{{TWO}}}, weights='0.7,0.3')", THREE)},
    "average_scaled": {
        "mean": (
            f"average({{'a': {HOULSBY.format(13)}, 'b': {HOULSBY.format(5)}}}, "
            "scale=0.3)",
            NUMBER,
        )
    },
    "average_lora": {
        "mean": (
            "average({'a': lora(rank=5), 'b': lora(rank=3, alpha=2.0), "
            "'c': lora(rank=1)}, weights='1,2,3', scale=0.4)",
            THREE,
        )
    },
    "fusion": {"fused": (f"fusion({{{TWO}}})", SPANS)},
    "fusion_first": {
        "fused": (
            f"fusion({{'a': {HOULSBY.format(13)}, 'b': {HOULSBY.format(5)}}}, "
            "value=False, first=1)",
            THREE,
        )
    },
    "fusion_alone": {
        "b": (
            "fusion({'a': pfeiffer(13, layers='1'), 'b': pfeiffer(7)})",
            THREE,
        )
    },
    "stack_fusion": {
        "task": (
            f"stack({{'en': mad_x(5, 3), 'f': fusion({{{TWO}}})}})",
            NUMBER,
        )
    },
    "stack_average": {
        "task": (
            f"stack({{'m': average({{{TWO}}}, weights='1,3')}}, pfeiffer(3))",
            THREE,
        )
    },
    "parallel": {
        "mrpc": ("pfeiffer(13)", THREE),
        "rte": ("pfeiffer(7)", NUMBER),
        "squad": ("pfeiffer(5)", SPANS),
    },
    "language": {"en": ("mad_x(13, 3)", GUESSES)},
}


def read_examples(folder):
    """`input_ids`, `input_mask` and `segment_ids`, int [rows, tokens]."""
    with np.load(folder / "examples.npz") as file:
        return dict(file)


def setup_outputs(bert, artifact, examples):
    """As of `outputs`; of masked words float32 [rows, tokens, words]."""
    if kind_of(artifact.config["task"]) != MASKED_LM:
        return outputs(bert, artifact, examples)
    config, own = bert.config, artifact.weights
    method = registry.parse(artifact.config["method"])

    def create(name, *_):
        source = own if name in own.shapes else bert.weights
        return tf.constant(source.read(name), tf.float32)

    added = method.variables(config, pooler=False)
    values = {name: create(name) for name in added}
    variables = encoder.make_variables(encoder.declare(config, False), create)
    model = encoder.Bert(config, variables, method.hooks(config, values))
    head = MaskedLMHead(config, create)
    ids, mask, segments = (
        tf.constant(examples[name], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    context = Context(mask)
    output = model(ids, segments, context)
    everywhere = tf.broadcast_to(tf.range(ids.shape[1]), ids.shape)
    logits = head(model, output.sequence_output, context, everywhere, ids)
    mask = examples["input_mask"][..., np.newaxis]
    return logits["logits"].numpy() * mask


def setup_difference(bert, several, folder, examples):
    """The greatest between ours and the library's outputs in a folder."""
    ours = [setup_outputs(bert, one, examples) for one in several.values()]
    with np.load(folder / "logits.npz") as file:
        theirs = [file[name] for name in sorted(file.files)]
    assert len(ours) == len(theirs)
    mask, worst = examples["input_mask"], 0.0
    for own, other in zip(ours, theirs):
        if other.ndim == 3:
            other = other * mask[..., np.newaxis]
        worst = max(worst, float(np.abs(own - other).max()))
    return worst


def imported_setup(bert, folder):
    """The library's adapters of a folder as this project has them, by name."""
    several = foreign_adapters.read_all(str(folder), bert.config)
    return {
        name: as_artifact(bert, one, str(folder))
        for name, one in several.items()
    }


def as_artifact(bert, foreign, folder):
    values = foreign_adapters.complete(
        foreign, bert.weights, bert.config
    ).values
    config = {
        "method": str(foreign.method),
        "task": foreign.task,
        "base": bert.base.describe(),
        "bert_config": dataclasses.asdict(bert.config),
    }
    shapes = {name: value.shape for name, value in values.items()}
    return Artifact(config, Weights(folder, shapes, values.__getitem__))


def our_setups(bert):
    """Adapters with random values, by name, of each case of `SETUPS`."""
    seed = 0
    for case, several in SETUPS.items():
        made = {}
        for name, (method, task) in several.items():
            seed += 1
            made[name] = random_artifact(bert, method, task, seed)
            if task is GUESSES:
                made[name] = with_berts_head(bert, made[name])
        yield case, made


def with_berts_head(bert, artifact):
    """A language's adapter that answers with BERT's own head."""
    own = artifact.weights

    def read(name):
        return (bert.weights if name.startswith("cls/") else own).read(name)

    weights = dataclasses.replace(own, read=read)
    return dataclasses.replace(artifact, weights=weights)


def write_setup(bert, several, folder):
    """Writes adapters for the library, as one setup if they are several."""
    made = [
        exported(one, name, one.config["task"] != GUESSES)
        for name, one in several.items()
    ]
    if len(made) > 1:
        made = [without_pooler(one, bert.weights) for one in made]
    first, *others = made
    foreign_adapters.write("adapterhub", folder, first, "", others)
    os.remove(os.path.join(folder, "README.md"))
