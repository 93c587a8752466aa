"""Compiles a run's step for a TPU or GPU, on a machine without either.

    .venv/bin/adapter-bert compile v5e --json=v5e.json -- run_classifier.py \\
        --task_name=MRPC --do_train=true --data_dir=$GLUE_DIR/MRPC \\
        --init_checkpoint=$BERT

The run follows `--`: run_classifier, run_squad, run_tagger, run_mlm or
run_vectors, and its flags. It opens its files as always and ends before its
first step: a step of training, or with --do_eval or --do_predict alone a step
of prediction, also of what is not trained yet, if there are rows to train on. A
method that is trained twice is compiled as it is trained first. Google's or
NVIDIA's compiler then tells whether the step compiles, the memory of a core,
floating-point operations and moved bytes; the device's peak rates give the time
of a step at best. No device and no network is needed, nothing is computed
without --program, and --output_dir is neither read nor written. A training of
run_vectors or with --few_shot is compiled for one core.

--json has the same figures: sizes in bytes and of one core, times in seconds.
A compiler's answers are kept in ~/.cache/adapter_bert, or where XDG_CACHE_HOME
or ADAPTER_BERT_CACHE says, so that an equal step is not compiled again.

The compilers have an environment of their own, which `make compilers` makes.
"""

import dataclasses
import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, Optional

from adapter_bert import environments
from adapter_bert.accelerators import account, devices
from adapter_bert.accelerators.account import Compiled
from adapter_bert.accelerators.devices import GPU, Device
from adapter_bert.checkpoints import packaged_models
from adapter_bert.errors import UserError, first_line
from adapter_bert.flag_page import read_command_line
from adapter_bert.flags import POSITIVE, Topic

# Names the interpreter of another environment with the compilers.
PYTHON = "ADAPTER_BERT_COMPILERS"
PROGRAMS = (
    "run_classifier",
    "run_squad",
    "run_tagger",
    "run_mlm",
    "run_vectors",
)
# Rows that TPUs compute at once: batches of --fit are a multiple.
TILE = 8
# How compilers say that a program needs too much memory.
NO_ROOM = "RESOURCE_EXHAUSTED"


@dataclasses.dataclass(frozen=True)
class Compilation:
    """Says how a step is compiled, and what is written."""

    cores: Optional[int] = Topic.HARDWARE.setting(
        None,
        "Cores of one host that divide the batch; default: the run's "
        "--num_tpu_cores or --num_devices, if given, else 1.",
        POSITIVE,
    )
    json: str = Topic.TO_DO.setting("", "File for the figures.")
    fit: bool = Topic.TO_DO.setting(
        False,
        "Also find the largest batch that fits, by two or more compiles.",
    )
    program: str = Topic.TO_DO.setting(
        "",
        "File for the step as a program that JAX runs without TensorFlow "
        "(lab/devices/run_program.py), with what it gives on this CPU.",
    )
    values: str = Topic.TO_DO.setting(
        "run",
        "Weights of --program: the run's, which are stored, or drawn where it "
        "runs, which makes a small file.",
        choices=("run", "seed"),
    )
    record_steps: int = Topic.TO_DO.setting(
        40, "Training steps that --program records."
    )


def parse(words: Sequence[str]) -> tuple[Compilation, Device, str, list[str]]:
    """Reads a command line: settings, device, program, and the run's flags."""
    words, run = list(words), []
    if "--" in words:
        place = words.index("--")
        words, run = words[:place], words[place + 1 :]
    about = f"{__doc__}\nDEVICE is one of {', '.join(devices.DEVICES)}.\n"
    settings, [name] = read_command_line(Compilation, about, ["DEVICE"], words)
    device = devices.find(name, settings.cores or 1)
    if not run:
        raise UserError(
            "the run is missing: its program and flags follow `--`, as in "
            f"adapter-bert compile {name} -- run_classifier.py "
            "--do_train=true ..."
        )
    program = run[0].removesuffix(".py")
    if program not in PROGRAMS:
        raise UserError(
            f"unknown program {run[0]!r}; expected one of {', '.join(PROGRAMS)}"
        )
    return settings, device, program, run[1:]


def main() -> None:
    """Compiles, prints a table, and writes JSON."""
    settings, device, program, words = parse(sys.argv)
    environments.go_on_with(device.packages, "compile", "compilers", PYTHON)
    import adapter_bert.start_tensorflow  # noqa: F401

    from adapter_bert import files

    # Nothing may fail after minutes of work.
    for name in ("json", "program"):
        if path := getattr(settings, name):
            files.prepare_folder(os.path.dirname(path) or ".")
            files.check_output(path, f"--{name}")
    files.prepare_folder(_cache())
    step = _take(program, words, device, settings.cores)
    if settings.program:
        from adapter_bert.accelerators import program as programs

        programs.check(step, settings.record_steps)
    account = _account(program, step, device, settings.fit)
    print(_table(account), end="", flush=True)
    if settings.json:
        files.write_json(settings.json, account)
    if not account["compiles"]:
        raise UserError(f"the step does not compile: {account['reason']}")
    if not account["fits"]:
        raise UserError(
            f"the step needs {account['memory']} bytes, but a core of "
            f"{account['device']} has {account['memory_of_core']}; pass a "
            "smaller batch, or more --gradient_accumulation_steps"
        )
    if settings.program:
        facts = {name: account[name] for name in programs.TOLD}
        programs.write(
            settings.program,
            step,
            facts,
            settings.values,
            settings.record_steps,
        )


def _take(
    program: str, words: list[str], device: Device, cores: Optional[int]
) -> Any:
    """Gives the first step of a run, as `device` computes it."""
    from adapter_bert import files, flags, keywords
    from adapter_bert.accelerators import step
    from adapter_bert.tasks.task_model import NotTrained

    run = importlib.import_module(f"adapter_bert.commands.{program}")
    FLAGS = flags.FLAGS
    with keywords.of_words(run.SETTINGS, program, words):
        for flag, value in (
            ("describe", True),
            ("cache_frozen_layers", True),
            ("base_dtype", "int8"),
            ("extend_labels", True),
        ):
            if flag in FLAGS and FLAGS[flag].value == value:
                raise UserError(
                    f"the run has --{flag}={value}, but what is compiled is "
                    "the step of a whole model in float32 or bfloat16; leave "
                    f"--{flag} out"
                )
        is_gpu = device.platform == GPU
        of_cores = "num_devices" if is_gpu else "num_tpu_cores"
        cores = cores or flags.is_given(of_cores) and FLAGS[of_cores].value or 1
        devices.find(device.name, cores)
        few_shot = "few_shot" in FLAGS and FLAGS.few_shot
        compares = program == "run_vectors" or few_shot
        if compares and FLAGS.do_train and cores > 1:
            raise UserError(
                f"the run divides its batch among {cores} cores, but its loss "
                "compares all rows of the batch, whose step is compiled for "
                "one core alone; pass --cores=1"
            )
        setattr(FLAGS, of_cores, cores)
        FLAGS.use_tpu, FLAGS.use_xla = not is_gpu, is_gpu
        FLAGS.engine = step.ENGINE
        if FLAGS.compute_dtype == "auto" and is_gpu:
            # As a run chooses on such a GPU.
            rates = device.flops
            is_faster = rates["bfloat16"] > rates["float32"]
            FLAGS.compute_dtype = "bfloat16" if is_faster else "float32"
        with files.temporary_folder() as folder:
            FLAGS.output_dir = os.path.join(folder, "out")
            try:
                return step.take(run.main)
            except NotTrained:
                # Other values make the same step.
                is_scored = "eval_batch_size" in FLAGS and not FLAGS.do_predict
                FLAGS.do_train = True
                FLAGS.do_eval = FLAGS.do_predict = False
                of = "eval" if is_scored else "predict"
                rows = FLAGS[f"{of}_batch_size"].value
                return step.take(run.main, predicted_rows=rows)


def _account(
    program: str, step: Any, device: Device, is_fit_asked: bool
) -> dict[str, Any]:
    """Gives the compiler's account of the run's step, as values of JSON.

    Sizes are bytes of one core. `memory` is the whole need of the step,
    `memory_of_core` what there is. `weights`, `optimizer` (Adam's slots) and
    `batch` are parts of `arguments`, as is `reused`, whose place outputs take.
    `flops` are floating-point operations of a step on one core.
    """
    from adapter_bert.accelerators import compilers

    frozen, trained, slots = step.shapes()
    length = step.batch["input_ids"].shape[-1]
    figures = {
        "device": device.name,
        "cores": step.cores,
        "program": program,
        "step": "training" if step.schedule else "prediction",
        "method": step.job.table.method,
        "dtype": step.job.compute_dtype,
        "rows": step.rows,
        "length": length,
        "versions": compilers.versions(device),
        "memory_of_core": device.memory,
        "weights": _bytes(frozen) + _bytes(trained),
        "optimizer": _bytes(slots),
        "batch": _bytes(step.batch) // step.cores,
    }
    compiled, reason = _compile(step, device)
    fits = compiled is not None and compiled.memory <= device.memory
    figures.update(compiles=compiled is not None, reason=reason, fits=fits)
    if compiled is not None:
        figures.update(dataclasses.asdict(compiled), memory=compiled.memory)
        figures.update(
            account.roofline(
                compiled, device, step.job.compute_dtype, step.rows
            )
        )
    if is_fit_asked:

        def memory_of(rows: int) -> Optional[int]:
            made = compiled
            if rows != step.rows:
                made, _ = _compile(step.with_rows(rows), device)
            return made and made.memory

        unit = step.cores * math.lcm(TILE, step.job.parts)
        figures["largest_batch"] = account.largest_batch(
            memory_of, step.rows, unit, device.memory
        )
    return figures


def _bytes(values: dict[str, Any]) -> int:
    return sum(value.nbytes for value in values.values())


def _cache() -> str:
    return os.path.join(packaged_models.caches()[0], "compiled")


def _compile(step: Any, device: Device) -> tuple[Optional[Compiled], str]:
    from adapter_bert import files
    from adapter_bert.accelerators import compilers

    length = step.batch["input_ids"].shape[-1]
    about = f"{device.name}, {step.rows} x {length}"
    lowered = compilers.lower(step, device)
    inputs = [lowered.as_text(), compilers.settings(device)]
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    kept = os.path.join(_cache(), f"{key}.json")
    if not files.exists(kept):
        answer: dict[str, Any] = {"account": None, "reason": ""}
        try:
            print(f"{about}: compiling", file=sys.stderr, flush=True)
            compiled = compilers.compile_lowered(lowered, device)
            answer["account"] = dataclasses.asdict(compiled)
        except compilers.Refusal as error:
            answer["reason"] = first_line(error)
            if NO_ROOM not in answer["reason"]:
                # The compiler may do better another time.
                return None, answer["reason"]
        files.write_json(kept, answer)
    keys = {"account": object, "reason": str}
    recorded = files.read_object(kept, "the compiler's answer", keys)
    return recorded["account"] and Compiled(**recorded["account"]), recorded[
        "reason"
    ]


def _table(account: dict[str, Any]) -> str:
    versions = ", ".join(f"{n} {v}" for n, v in account["versions"].items())
    cores = "1 core" if account["cores"] == 1 else f"{account['cores']} cores"
    lines = [
        f"{account['program']}, {account['step']}, {account['method']}: "
        f"{account['rows']} rows of {account['length']} tokens, "
        f"{account['dtype']}, on {cores} of {account['device']}"
    ]

    def tell(name: str, text: str) -> None:
        lines.append(f"{name:19}{text}")

    def tell_size(name: str, size: int, more: str = "") -> None:
        tell(name, f"{size / 1e6:,.1f} MB{more}")

    tell("compiled by", versions)
    tell(
        "compiles", "yes" if account["compiles"] else f"no: {account['reason']}"
    )
    if account["compiles"]:
        of = f" of {account['memory_of_core'] / 1e6:,.1f}"
        fits = "" if account["fits"] else ", which is too much"
        tell_size("memory of a core", account["memory"], of + fits)
        for name in ("weights", "optimizer", "batch", "temporaries", "code"):
            tell_size(f"  {name}", account[name])
    if account.get("flops") is not None:
        by = f" (counted by {account['counter']})"
        tell("operations", f"{account['flops'] / 1e9:,.2f} GFLOP{by}")
        tell("moved", f"{account['moved'] / 1e9:,.2f} GB")
        tell(
            "at best",
            f"{account['seconds_at_best'] * 1e3:,.2f} ms a step, "
            f"{account['examples_per_second_at_best']:,.0f} examples/s, bound "
            f"by {account['bound_by']}",
        )
    if "largest_batch" in account:
        largest = account["largest_batch"]
        tell("largest batch", f"{largest} rows" if largest else "none found")
    return "\n".join(lines) + "\n"
