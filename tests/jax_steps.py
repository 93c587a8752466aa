"""Training steps as `adapter-bert compile` builds them, by JAX on the CPU.

    .venv-compilers/bin/python tests/jax_steps.py CONFIG FOLDER

It runs in the compilers' environment, with a BERT's config as JSON. FOLDER gets
`<case>.npz` for each of `CASES`: `losses`, float32 [STEPS], the trained
`values/<name>`, and the StableHLO as `program`. It also gets the lines that
refuse steps, in files of the steps' names, and `ACCOUNTS`.
"""

import dataclasses
import json
import os
import pathlib
import sys
import unittest.mock
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import tensorflow as tf
from conftest import write_json
from engine_jobs import CLASSIFICATION, LENGTH, TASKS, make_job, make_rows

from adapter_bert.accelerators.devices import find
from adapter_bert.accelerators.step import Step
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.data.input_pipeline import (
    TrainPlan,
    make_batch,
    train_batches,
)
from adapter_bert.errors import UserError
from adapter_bert.optimization import Schedule

STEPS, LEARNING_RATE, BATCH_SIZE = 10, 1e-3, 8
ACCOUNTS = "accounts.json"
# A step before and after it is compiled.
TEXTS = {
    "plain": ("stablehlo.add", "add(a, b)"),
    "loop": ("stablehlo.while", "add(a, b)"),
    "compiled loop": ("stablehlo.add", "s = f32[] while(a)"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A training of `engine_jobs`; `options` are of its `Job`."""

    task: str = "tiny"
    method: str = "houlsby(size=4)"
    cores: int = 1
    dropout: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def job(self, config, folder):
        """A job whose batches have one length, as compilers need."""
        if not self.dropout:
            config = dataclasses.replace(
                config,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        return make_job(
            config,
            folder,
            self.method,
            length=LENGTH,
            task=TASKS[self.task],
            share_layers=False,
            **self.options,
        )


CASES = {
    "classification": Case(),
    "corrected": Case(
        "tagging", "lora", options={"adam_bias_correction": True}
    ),
    "parts": Case("squad", "bitfit", options={"parts": 2}),
    "full": Case(method="full"),
    # As `adapter-bert compile` has them, masks included.
    "accelerator": Case(options={"for_accelerator": True}),
    "layers": Case(
        "tagging", options={"for_accelerator": True, "recompute_layers": True}
    ),
    # Without dropout, which differs from core to core; this head has none.
    "two_cores": Case("squad", cores=2, dropout=False),
}


def compute(case, config):
    """The arrays of a case's file."""
    from adapter_bert.accelerators.compilers import jax, jitted

    rows = make_rows(TASKS[case.task])
    plan = TrainPlan(rows.lengths, BATCH_SIZE, STEPS, 1)
    batches = list(train_batches(rows, plan, range(STEPS), LENGTH))
    schedule = Schedule(LEARNING_RATE, STEPS, 1)
    job = case.job(config, "unused")
    step = Step(job, batches[0], case.cores, schedule)
    function, arguments = jitted(step, jax.devices())
    program = function.lower(*arguments).as_text()
    frozen, trained, slots = step.values()
    done, losses = np.int64(0), []
    for batch in batches:
        loss, trained, slots, done = function(
            frozen, trained, slots, batch, done
        )
        losses.append(loss)
    assert done == STEPS
    values = {f"values/{name}": value for name, value in trained.items()}
    return {"losses": np.array(losses), "program": program, **values}


class Filtered(Step):
    """A prediction whose shape the values decide."""

    def predict(self, frozen, batch):
        return {"some": tf.boolean_mask(batch["row"], batch["row"] > 2)}


class Printed(Step):
    """A prediction by an operation that XLA does not have."""

    def predict(self, frozen, batch):
        texts = tf.strings.as_string(batch["row"])
        return {"number": tf.strings.to_number(texts)}


def refuse(kind, config):
    """The line that refuses a step."""
    from adapter_bert.accelerators.compilers import jax, jitted

    batch = make_batch(make_rows(CLASSIFICATION), np.arange(8), LENGTH)
    step = kind(Case().job(config, "unused"), batch, 1, None)
    try:
        jitted(step, jax.devices())
    except UserError as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was taken")


class Lowered:
    """Stands for a translated step, and for what is compiled of it."""

    memory = SimpleNamespace(
        argument_size_in_bytes=1,
        alias_size_in_bytes=0,
        output_size_in_bytes=0,
        temp_size_in_bytes=0,
        generated_code_size_in_bytes=0,
    )

    def __init__(self, device, before, after):
        self.has_count = device.platform != "cuda"
        self.before, self.after, self.options = before, after, None

    def compile(self, options):
        self.options = options
        return self

    def as_text(self):
        return self.before

    def memory_analysis(self):
        return self.memory

    def cost_analysis(self):
        return {"flops": 5.0, "bytes accessed": 7.0} if self.has_count else None

    def runtime_executable(self):
        module = SimpleNamespace(to_string=lambda: self.after)
        return SimpleNamespace(hlo_modules=lambda: [module])


def accounts():
    """What compilers are asked for; operations of programs with loops."""
    from adapter_bert.accelerators import compilers

    lines = {}
    with unittest.mock.patch.object(compilers, "_count", lambda *_: (5.0, 7.0)):
        for device in map(find, ("v5e", "h100")):
            for name, texts in TEXTS.items():
                lowered = Lowered(device, *texts)
                made = compilers.compile_lowered(lowered, device)
                facts = lowered.options, made.flops, made.moved, made.counter
                lines[f"{device.name}, {name}"] = facts
    return lines


def main():
    config = BertConfig(**json.loads(sys.argv[1]))
    folder = pathlib.Path(sys.argv[2])
    # More than any case has.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    for name, case in CASES.items():
        np.savez(folder / name, **compute(case, config))
    for kind in (Filtered, Printed):
        (folder / kind.__name__).write_text(refuse(kind, config))
    write_json(folder / ACCOUNTS, accounts())


if __name__ == "__main__":
    main()
