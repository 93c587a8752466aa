"""`adapter-bert compile`: refusals, the step that is taken, real compiles."""

import dataclasses
import functools
import json
import os
import sys
import types

import pytest
import refusals
from compilers_program import compile_run, environment, needed
from conftest import ROOT, flag_words, own_lines, read_json, run_command

from adapter_bert import environments
from adapter_bert.accelerators import devices
from adapter_bert.accelerators.account import Compiled
from adapter_bert.commands import compile as program

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def words(tiny_flags):
    """A small run's words; more flags replace some."""
    del tiny_flags["cpu_lanes"]
    return lambda **more: flag_words({**tiny_flags, **more})


def take(words, device="v5e", cores=None, program_name="run_classifier"):
    """The step of a run; needs no compiler."""
    place = devices.find(device)
    return program._take(program_name, list(words), place, cores)


# The step that is taken


def test_a_training_gives_its_first_step(words, tmp_path):
    step = take(words(train_batch_size=16))
    assert step.schedule.num_train_steps == 10
    assert step.cores == 1 and step.rows == 16
    assert step.batch["input_ids"].shape == (16, 24)
    assert step.job.length == 24 and step.job.lanes == 1
    assert not step.job.share_layers and not step.job.use_xla
    # The run's own folder stays as it is.
    assert not (tmp_path / "out").exists()
    # XLA compiles for GPUs.
    assert take(words(), "h100").job.use_xla


def test_a_prediction_gives_its_first_batch(words, tiny_glue):
    flags = words(
        task_name="sts-b",
        data_dir=tiny_glue / "STS-B",
        do_train=False,
        do_predict=True,
        predict_batch_size=8,
    )
    step = take(flags, "h100", 2)
    assert step.schedule is None
    assert step.cores == 2 and step.rows == 8
    assert step.batch["input_ids"].shape == (8, 24)
    frozen, trained, slots = step.shapes()
    assert not trained and not slots and len(frozen) > 40


@pytest.mark.parametrize("kind", ["run_squad", "run_tagger", "run_mlm"])
def test_every_program_has_a_step(squad_flags, ner_flags, text_flags, kind):
    flags = {
        "run_squad": squad_flags,
        "run_tagger": ner_flags,
        "run_mlm": text_flags,
    }[kind]
    step = take(flag_words(flags), "v4", 4, kind)
    assert step.rows == 8 and step.cores == 4 and step.schedule


def test_vectors_are_compiled_for_one_core(vector_flags):
    def of(cores=None, **changes):
        vector_flags.update(changes)
        return take(flag_words(vector_flags), "v4", cores, "run_vectors")

    step = of(train_batch_size=8)
    assert step.batch["input_ids"].shape == (8, 2, 24) and step.rows == 8
    assert step.schedule and step.batch["text_ids"].shape == (8, 2)
    # Each side has an adapter of its own, and each text says its side.
    both = of(two_adapters=True)
    assert both.batch["input_ids"].shape == (8, 2, 24)
    assert len(both.shapes()[1]) == 2 * len(step.shapes()[1])
    refusals.check(lambda: of(2), "compares all rows")
    texts = of(do_train=False, eval_batch_size=8).batch
    assert texts["input_ids"].shape == (8, 24)
    assert texts["task_ids"].shape == (8,)


@pytest.mark.parametrize(
    "device, flag", [("v3", "num_tpu_cores"), ("a100", "num_devices")]
)
def test_the_run_may_name_the_cores(words, device, flag):
    named = words(**{flag: 4})
    assert take(named, device).cores == 4
    assert take(named, device, 2).cores == 2


def test_auto_is_the_dtype_that_a_run_chooses_there(words):
    dtypes = [
        take(words(compute_dtype="auto"), device).job.compute_dtype
        for device in ("v2", "t4", "h100")
    ]
    assert dtypes == ["bfloat16", "float32", "bfloat16"]


@pytest.mark.parametrize(
    "more, device, cores, part",
    [
        ({"base_dtype": "int8"}, "h100", None, "--base_dtype=int8"),
        ({"num_tpu_cores": 9}, "v4", None, "9 cores"),
        ({"num_devices": 9}, "l4", None, "9 cores"),
        ({"extend_labels": True}, "v4", None, "--extend_labels=True"),
        ({"few_shot": True}, "v4", 2, "compares all rows"),
        ({"cache_frozen_layers": True}, "v4", None, "--cache_frozen_layers"),
        ({"describe": True}, "v4", None, "--describe"),
        ({"train_batch_size": 6}, "v4", 4, "6 is not a multiple of"),
        ({"train_batch_size": 6}, "h100", 4, "6 cannot be divided"),
        ({"do_train": False}, "v4", None, "nothing to do"),
        ({"no_such": 1}, "v4", None, "no_such"),
    ],
)
def test_what_cannot_be_compiled_is_refused(words, more, device, cores, part):
    refusals.check(lambda: take(words(**more), device, cores), part)


# The command


@pytest.fixture
def main(run_main, monkeypatch, tmp_path):
    """Runs the command in this process, with a cache of its own."""
    monkeypatch.setenv("ADAPTER_BERT_CACHE", str(tmp_path / "cache"))
    return functools.partial(run_main, program)


@pytest.mark.parametrize(
    "command, part",
    {
        "v9 -- run_classifier.py": "'v9'",
        "v4 --cores=8 -- run_squad": "a host with v4 has 4",
        "v4 --cores=0 -- run_squad": "--cores is 0",
        "v4 --": "the run is missing",
        "v4 -- train.py": "'train.py'",
        "v4 --no_such -- run_mlm": "no_such",
        "-- run_mlm": "DEVICE",
    }.items(),
)
def test_a_wrong_command_is_refused_before_compilers_are_looked_for(
    main, monkeypatch, command, part
):
    monkeypatch.setattr(environments, "go_on_with", None)
    refusals.check(lambda: main(*command.split()), part)


@pytest.fixture
def without_compilers(monkeypatch):
    """This environment without JAX, even if there is one."""
    monkeypatch.setattr("importlib.metadata.distributions", lambda: [])


def fake_python(folder, output, code=0):
    """A program in place of an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho {output}\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("code", [None, 0, 1])
def test_without_compilers_it_says_what_to_run(
    main, without_compilers, monkeypatch, tmp_path, code
):
    """Of no environment, one that lacks them, one that cannot be asked."""
    python, parts = tmp_path / "none/python", ["run `make compilers`"]
    if code is not None:
        python = fake_python(tmp_path, "libtpu", code)
        parts.append("libtpu")
    monkeypatch.setenv(program.PYTHON, str(python))
    refusals.check(lambda: main("v4", "--", "run_mlm"), python, *parts)


def test_it_goes_on_in_the_compilers_environment(
    main, without_compilers, monkeypatch, tmp_path
):
    """With this checkout's package, wherever it was called."""
    python, calls = fake_python(tmp_path, ""), []

    def execve(*arguments):
        calls.append(arguments)
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv(program.PYTHON, str(python))
    monkeypatch.setenv("PYTHONPATH", "/other")
    with pytest.raises(SystemExit):
        main("v4", "--fit", "--", "run_mlm", "--seed=3")
    [(path, command, variables)] = calls
    assert path == command[0] == str(python)
    first = ["-m", "adapter_bert", "compile", "v4", "--fit", "--"]
    assert command[1:] == [*first, "run_mlm", "--seed=3"]
    assert variables["PYTHONPATH"] == f"{ROOT}{os.pathsep}/other"
    assert variables[program.PYTHON] == str(python)


class Compilers(types.ModuleType):
    """Stands for `accelerators.compilers`: 1 GB and 0.5 GB for each row.

    Attributes:
        rows: of each compile.
        reason: of its refusals.
        refuses_above: rows that it compiles at most.
    """

    Refusal = RuntimeError

    def __init__(self):
        super().__init__("compilers")
        self.rows, self.refuses_above = [], 10**9
        self.reason = "RESOURCE_EXHAUSTED: no room"

    def versions(self, device):
        return {"jax": "1.2"}

    def settings(self, device):
        return {"device": device.name}

    def lower(self, step, device):
        text = f"{step.rows} rows"
        return types.SimpleNamespace(rows=step.rows, as_text=lambda: text)

    def compile_lowered(self, lowered, device):
        self.rows.append(lowered.rows)
        if lowered.rows > self.refuses_above:
            raise self.Refusal(self.reason + "\nand more")
        return Compiled(
            arguments=10**9,
            reused=10**6,
            outputs=10**6,
            temporaries=10**9 // 2 * lowered.rows,
            code=0,
            flops=1e12,
            moved=1e9,
            counter="the compiler",
        )


@pytest.fixture
def compilers(monkeypatch):
    """Takes the place of the compilers."""
    from adapter_bert import accelerators

    fake = Compilers()
    name = f"{accelerators.__name__}.compilers"
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr(accelerators, "compilers", fake, raising=False)
    monkeypatch.setattr(environments, "go_on_with", lambda *_: None)
    return fake


@pytest.fixture
def compiled(main, compilers, words, tmp_path):
    """Compiles the small run; gives the figures that are written."""

    def run(*arguments, refused=(), **flags):
        path = tmp_path / "made/figures.json"
        run = ["--", "run_classifier", *words(**flags)]

        def call():
            main(*arguments, f"--json={path}", *run)

        if refused:
            refusals.check(call, *refused)
        else:
            call()
        return read_json(path)

    return run


def test_figures_are_printed_and_written(compiled, capsys):
    figures = compiled("v4", "--cores=2")
    assert figures["compiles"] and figures["fits"] and figures["reason"] == ""
    shape = [figures[key] for key in ("device", "cores", "rows", "length")]
    assert shape == ["v4", 2, 8, 24]
    assert figures["step"] == "training" and figures["dtype"] == "float32"
    assert figures["memory"] == 5 * 10**9
    assert figures["memory_of_core"] == 32 * 2**30
    # Two slots of float32 for each trained value.
    assert 0 < figures["optimizer"] < 2 * figures["weights"]
    # 1 TFLOP at 275 TFLOP a second.
    assert figures["seconds_at_best"] == pytest.approx(1 / 275)
    assert "largest_batch" not in figures
    printed = capsys.readouterr().out
    for part in (
        "8 rows of 24 tokens, float32, on 2 cores of v4",
        "jax 1.2",
        "5,000.0 MB of 34,359.7",
        "1,000.00 GFLOP (counted by the compiler)",
        "3.64 ms a step, 2,200 examples/s, bound by products",
    ):
        assert part in printed


def test_an_equal_step_is_compiled_once(compiled, compilers, tmp_path):
    compiled("v4")
    compiled("v4")
    assert compilers.rows == [8]
    compiled("v4", train_batch_size=16)
    compiled("v5p")
    assert compilers.rows == [8, 16, 8]
    assert len(list((tmp_path / "cache/compiled").iterdir())) == 3


@pytest.mark.parametrize("is_room", [True, False])
def test_a_refusal_is_one_line_and_written_too(
    compiled, compilers, capsys, is_room
):
    """One for want of memory is final, another one is tried again."""
    compilers.refuses_above = 0
    if not is_room:
        compilers.reason = "INTERNAL: no ptxas"
    for _ in range(2):
        figures = compiled("v4", refused=["does not compile", compilers.reason])
    assert compilers.rows == [8] if is_room else [8, 8]
    assert figures["reason"] == compilers.reason
    assert not figures["compiles"] and not figures["fits"]
    assert "compiles           no: " in capsys.readouterr().out


def test_a_step_that_does_not_fit_is_an_error(compiled, capsys):
    """The compiler of GPUs takes any size."""
    refused = ["needs 17000000000 bytes"]
    figures = compiled("t4", refused=refused, train_batch_size=32)
    assert figures["compiles"] and not figures["fits"]
    assert "which is too much" in capsys.readouterr().out


def test_the_largest_batch_is_searched(compiled, compilers, capsys):
    """Of eight rows a core: 0.98 of 16 GB, less 1 GB, are 29.4 rows."""
    assert compiled("t4", "--fit")["largest_batch"] == 24
    assert compilers.rows == [8, 16, 24]
    assert "largest batch      24 rows" in capsys.readouterr().out


def test_what_is_not_counted_is_not_told(
    compiled, compilers, monkeypatch, capsys
):
    make = compilers.compile_lowered

    def uncounted(*arguments):
        made = make(*arguments)
        return dataclasses.replace(made, flops=None, moved=None)

    monkeypatch.setattr(compilers, "compile_lowered", uncounted)
    compiled("v4")
    printed = capsys.readouterr().out
    assert "compiles           yes" in printed
    assert "operations" not in printed and "at best" not in printed


def test_a_place_that_cannot_be_written_is_told_before_the_work(
    main, compilers, words, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()

    def call(*flags):
        main("v4", *flags, "--", "run_classifier", *words())

    for flag, *parts in (
        (f"--json={tmp_path}/file/v4.json", "file"),
        (f"--json={tmp_path}", f"--json is {tmp_path}, a folder"),
        (f"--program={tmp_path}", f"--program is {tmp_path}, a folder"),
        ("--json=/dev/null", "is a pipe or a device"),
    ):
        refusals.check(functools.partial(call, flag), *parts)
    monkeypatch.setenv("ADAPTER_BERT_CACHE", str(tmp_path / "file"))
    refusals.check(call, "file")
    assert compilers.rows == []


def test_help_needs_neither_tensorflow_nor_jax():
    code = (
        "import sys; from adapter_bert import commands\n"
        "sys.argv = ['adapter-bert', 'compile', '--help']\n"
        "try: commands.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'tensorflow', 'jax'} & set(sys.modules)"
    )
    done = run_command(sys.executable, "-c", code, cwd=ROOT, check=True)
    assert "usage: adapter-bert compile DEVICE" in done.stdout
    for name in devices.DEVICES:
        assert name in done.stdout


# Real compiles


@needed
@pytest.mark.parametrize("device", ["v5e", "h100"])
@pytest.mark.parametrize("kind", ["training", "prediction"])
def test_the_compilers_take_the_step(words, tiny_glue, tmp_path, device, kind):
    """As a user runs it; a second time the answer is there."""
    flags = words(
        task_name="sts-b",
        data_dir=tiny_glue / "STS-B",
        do_train=kind == "training",
        do_predict=True,
    )
    path = tmp_path / "found.json"
    command = [device, f"--json={path}", "--cores=2", "--", "run_classifier"]
    variables = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = compile_run(*command, *flags, env=variables, check=True)
    first = path.read_bytes()
    figures = json.loads(first)
    assert figures["compiles"] and figures["fits"]
    assert figures["step"] == kind and figures["cores"] == 2
    # A core's part: frozen values are arguments, padded on a TPU.
    used = figures["weights"] + figures["optimizer"]
    assert used <= figures["arguments"] < 20 * used
    assert figures["flops"] > 1e5 and figures["moved"] > 1e5
    assert f"on 2 cores of {device}" in done.stdout
    [kept] = (tmp_path / "cache/adapter_bert/compiled").iterdir()
    before = kept.stat().st_mtime_ns
    done = compile_run(*command, *flags, env=variables)
    assert done.returncode == 0 and "compiling" not in done.stderr
    assert path.read_bytes() == first and kept.stat().st_mtime_ns == before
    if kind == "prediction":
        # Figures are of one core, which here has half of the rows.
        command[2] = "--cores=1"
        compile_run(*command, *flags, env=variables, check=True)
        whole = read_json(path)
        assert 1.7 < whole["flops"] / figures["flops"] < 2.1


@needed
def test_a_refusal_is_one_line_from_any_folder(words, tmp_path):
    """The compilers' environment imports this checkout."""
    flags = words(describe=True)
    done = compile_run(
        *("v4", "--", "run_classifier", *flags), cwd=tmp_path, env=environment()
    )
    assert done.returncode == 1
    [line] = [x for x in own_lines(done.stderr) if x.startswith("error")]
    assert "leave --describe out" in line
    assert "Traceback" not in done.stderr
