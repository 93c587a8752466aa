"""Programs run without TensorFlow: the CPU's record, refusals, comparisons."""

import json
import os
import runpy
import zlib
from shutil import copy

import compilers_program
import numpy as np
import pytest
from compilers_program import LONG, compile_run, needed
from conftest import ROOT, module_fixture, read_json, run_command, run_process
from numpy.testing import assert_allclose

from lab.trials import tiny_files

pytestmark = pytest.mark.older_stack

RUNNER = ROOT / "lab/devices/run_program.py"
STEPS = 12
# An environment with PyTorch and AdapterHub's `adapters`.
PEER = os.environ.get("ADAPTER_BERT_PEER", str(ROOT / ".venv-peer/bin/python"))
# Nothing of these may be imported.
ALONE = (
    "import runpy, sys; sys.modules.update(tensorflow=None, adapter_bert=None);"
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@module_fixture
def runner():
    """What `run_program.py` defines."""
    return runpy.run_path(str(RUNNER))


@module_fixture
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("programs")
    tiny_files.make(place)
    return place


def run_flags(folder, *more):
    """Flags of a tiny run."""
    return (
        "--task_name=custom",
        f"--data_dir={folder / tiny_files.TABLE}",
        f"--init_checkpoint={folder / tiny_files.BERT}",
        "--max_seq_length=24",
        "--learning_rate=1e-3",
        "--train_batch_size=8",
        "--predict_batch_size=8",
        "--num_train_epochs=4",
        *more,
    )


def make_program(path, folder, *more, values="seed", steps=STEPS):
    """Compiles a tiny run for a GPU, and writes its program."""
    words = ("--program", path, f"--values={values}", f"--record_steps={steps}")
    run = ("run_classifier.py", *run_flags(folder, *more))
    done = compile_run("h100", *words, "--", *run, check=True)
    return done.stderr


def run_alone(folder, *words, python=compilers_program.PYTHON, device="cpu"):
    """Runs a copy of `run_program.py` as where nothing else is."""
    place = copy(RUNNER, folder)
    return run_command(
        *(python, "-I", "-c", ALONE, place, *words),
        timeout=LONG,
        env={
            **os.environ,
            "JAX_PLATFORMS": device,
            "CUDA_VISIBLE_DEVICES": "-1",
        },
    )


@pytest.fixture
def record(tmp_path):
    """Runs programs, which agree; gives what is recorded of them."""

    def run(*words, code=0):
        results = tmp_path / "results.json"
        done = run_alone(tmp_path, *words, f"--json={results}")
        assert done.returncode == code, done.stderr
        return read_json(results)["runs"]

    return run


def errors_of(done):
    """The lines of a program that has failed, without those of libraries."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return [x for x in done.stderr.splitlines() if x.startswith("error: ")]


@module_fixture
def training(folder):
    path = folder / "training.npz"
    log = make_program(path, folder, "--do_train=true")
    assert f"step {STEPS}/{STEPS}, loss" in log
    return path


def changed(path, place, **arrays):
    """A copy of a program with other arrays."""
    with np.load(path) as saved:
        content = {name: saved[name] for name in saved.files}
    content.update(arrays)
    np.savez(place, **content)
    return place


@needed
class TestTraining:
    def test_jax_alone_gives_the_cpu_s_record(self, training, record):
        assert training.stat().st_size < 200_000
        [run] = record(training, "--steps=15")
        assert run["agrees"] and run["device"] == "cpu"
        losses, expected = run["losses"], run["losses_of_cpu"]
        assert (len(losses), len(expected)) == (15, STEPS)
        assert_allclose(losses[:STEPS], expected, atol=1e-5)
        assert np.mean(expected[-3:]) < np.mean(expected[:3]) - 0.02
        assert run["rows_per_second"] == pytest.approx(8 / run["seconds"])
        # Another time, the run of the same program takes its place.
        [again] = record(training)
        assert again["date"] > run["date"]

    @pytest.mark.parametrize("name", ("loss", "values", "norms"))
    def test_other_numbers_are_told(self, training, tmp_path, record, name):
        with np.load(training) as saved:
            loss = saved["recorded/loss"] + 0.01
            [kernel, *_] = [n for n in saved.files if n.endswith("/weights1")]
            of_kernel = saved[kernel].copy()
        # The norm is first.
        if name == "norms":
            of_kernel[0] += 0.1
        else:
            of_kernel[1:] += 0.1
        arrays = {"recorded/loss": loss} if name == "loss" else {}
        arrays = arrays or {kernel: of_kernel}
        [run] = record(changed(training, tmp_path / "x.npz", **arrays), code=1)
        beyond = {
            key
            for key, value in run["difference"].items()
            if value > run["tolerance"][key]
        }
        assert (run["agrees"], beyond) == (False, {name})

    def test_the_same_run_makes_the_same_file(self, training, folder, tmp_path):
        path = tmp_path / "again.npz"
        make_program(path, folder, "--do_train=true")
        assert path.read_bytes() == training.read_bytes()


@needed
def test_stored_values_in_bfloat16_and_prediction(folder, tmp_path, record):
    """A run's own values travel in the file; a prediction has one record."""
    run = tmp_path / "run"
    run_process(
        *run_flags(folder, "--do_train=true", f"--output_dir={run}"),
        "--num_train_epochs=1",
    )
    paths = [tmp_path / "training.npz", tmp_path / "prediction.npz"]
    narrow = "--compute_dtype=bfloat16"
    ways = [
        ("--do_train=true", narrow),
        ("--do_predict=true", narrow, f"--adapter={run / 'adapter'}"),
    ]
    for path, way in zip(paths, ways):
        make_program(path, folder, *way, values="run")
    first, second = record(*paths)
    same = {"values": 0, "norms": 0}
    assert first["difference"] == {"loss": 0, **same}
    assert (second["step"], second["difference"]) == ("prediction", same)


@needed
@pytest.mark.parametrize(
    "words, problem",
    [
        (["--record_steps=21"], "expected 1 to 20, the run's steps"),
        (["--cores=2"], "--program is of one core, found 2"),
        (
            ["--record_steps=3", "--", "--learning_rate=1e30"],
            "the CPU's loss of step 2 is not finite",
        ),
    ],
)
def test_what_cannot_be_recorded_is_one_line(folder, tmp_path, words, problem):
    path = tmp_path / "program.npz"
    words, _, more = " ".join(words).partition(" -- ")
    run = run_flags(folder, "--do_train=true", *more.split())
    arguments = (f"--program={path}", *words.split())
    done = compile_run("h100", *arguments, "--", "run_classifier.py", *run)
    [line] = errors_of(done)
    assert problem in line and not path.exists()


# A norm, and two values.
RECORD = [5, 3, 4]


@pytest.mark.parametrize(
    "losses, output, recorded, reason",
    [
        ([1, np.nan], RECORD, RECORD, "a loss is not finite"),
        ([1, 2, np.inf], RECORD, RECORD, "a loss is not finite"),
        ([1, 2], [5, 3, np.nan], RECORD, "kernel is not finite"),
        ([1, 2], [np.inf, 3, 4], RECORD, "kernel is not finite"),
        ([1, 2], RECORD, [5, 3, np.nan], "the CPU's kernel is not finite"),
        ([1, 2], RECORD, RECORD, None),
    ],
)
def test_each_number_must_be_finite(runner, losses, output, recorded, reason):
    """Python's `max` would skip what is no number, unless it came first."""
    compared = runner["_compare"](
        {"loss": np.float32([1, 2]), "kernel": np.float32(recorded)},
        losses,
        {"kernel": np.float32(output)},
        {"kernel": np.zeros(2, np.float32)},
    )
    assert compared.get("reason") == reason
    differences = {"loss": 0, "values": 0, "norms": 0}
    assert compared.get("difference") == (None if reason else differences)


def test_values_are_drawn_by_the_rule_of_the_file(runner):
    """All machines draw these bits, whose CRC-32 the rule gives."""
    draw = runner["draw"]
    about = dict(shape=[200, 300], dtype="float32", mean=0.5, deviation=0.02)
    drawn = draw("bert/pooler/dense/kernel", about)
    assert drawn.dtype == np.float32 and drawn.shape == (200, 300)
    assert drawn.mean() == pytest.approx(0.5, abs=5e-4)
    assert drawn.std() == pytest.approx(0.02, rel=0.01)
    assert zlib.crc32(drawn.tobytes()) == 958126722
    assert not np.array_equal(draw("other", about), drawn)


def test_the_runs_on_a_gpu_are_recorded_and_agree(runner):
    runs = runner["read_runs"](ROOT / "results/device_runs.json")
    ours = [run for run in runs if run["runner"] == "jax"]
    assert ours and all(run["agrees"] for run in ours)
    for run in ours:
        apart, tolerance = run["difference"], run["tolerance"]
        assert all(apart[name] <= tolerance[name] for name in apart)
    page = (ROOT / "results/devices.md").read_text()
    sizes = {"minilm": "MiniLM", "base": "BERT-base"}
    for run in ours:
        size = sizes[run["name"].split("-")[0]]
        milliseconds = f"{run['seconds'] * 1e3:.1f}"
        row = f"| {size}, {run['step']}, {run['dtype']} | {milliseconds} |"
        assert row in page


def test_programs_are_made_without_trainings(tmp_path):
    """Each command is a compile, which here is only told."""
    done = run_command(
        ROOT / "lab/devices/make_programs.sh",
        tmp_path,
        "minilm",
        env={**os.environ, "PYTHON": "echo"},
    )
    commands = [x for x in done.stdout.splitlines() if "run_classifier" in x]
    assert len(commands) == 4
    for command, name in zip(
        commands,
        (
            f"{dtype}-{step}"
            for dtype in ("float32", "bfloat16")
            for step in ("training", "prediction")
        ),
    ):
        assert command.startswith("-m adapter_bert compile h100 --values=seed")
        path = tmp_path / f"minilm-{name}.npz"
        assert f"--program={path} --record_steps=10 --" in command


@needed
@pytest.mark.skipif(
    not os.path.exists(PEER), reason=f"no {PEER}; `make peers` makes it"
)
def test_the_same_step_is_timed_in_pytorch(training, tmp_path):
    for name in ("run.sh", "run_program.py", "peer.py"):
        copy(ROOT / "lab/devices" / name, tmp_path)
    results = tmp_path / "results.json"
    done = run_command(
        tmp_path / "run.sh",
        results,
        training,
        timeout=LONG,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "PYTHON": compilers_program.PYTHON,
            "TORCH_PYTHON": PEER,
            # As in containers of NVIDIA.
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
        },
        check=True,
    )
    ours, *theirs = read_json(results)["runs"]
    assert ours["runner"] == "jax" and ours["agrees"]
    runners = ["adapters eager", "adapters compile"]
    assert [x["runner"] for x in theirs] == runners
    with np.load(training) as saved:
        trained = json.loads(saved["description"].tobytes())["trained"]
    count = sum(int(np.prod(about["shape"])) for about in trained.values())
    for run in theirs:
        assert (run["rows"], run["length"]) == (ours["rows"], ours["length"])
        assert run["trained_parameters"] == count
        assert run["tensor_float_32"] is False
        assert run["rows_per_second"] > 0 and np.isfinite(run["losses"]).all()
        ratio = ours["rows_per_second"] / run["rows_per_second"]
        assert f"jax / {run['runner']} = {ratio:.2f}" in done.stdout
