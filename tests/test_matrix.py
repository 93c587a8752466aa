"""The matrix of steps that are compiled for devices."""

import dataclasses
import re
import sys
import types

import compilers_program
import pytest
import tensorflow as tf
from conftest import ROOT, read_json, run_command

from adapter_bert import accelerators
from adapter_bert.accelerators.devices import DEVICES
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import METHODS
from lab import report
from lab.devices import matrix, runs
from lab.devices.runs import DTYPES, STEPS, DeviceRun

VERSIONS = {"tensorflow": "2", "jax": "1"}
SIZES = "arguments reused outputs temporaries code moved memory".split()


@pytest.fixture(autouse=True)
def versions(monkeypatch):
    """The compilers are not installed here."""
    monkeypatch.setattr(matrix, "versions", lambda: VERSIONS)


@pytest.fixture
def compiled(monkeypatch):
    """The cells that were compiled, of which `lora` is refused."""
    seen = []

    def compile_cell(device, run, data):
        seen.append((device, run))
        is_fine = run.method != "lora"
        return {
            "device": device,
            **dataclasses.asdict(run),
            "rows": 8,
            "length": 24,
            "compiles": is_fine,
            "reason": "" if is_fine else "too odd",
            "seconds": 1.0,
            "date": "2020-01-01",
            **dict.fromkeys(SIZES, 10**9),
            "flops": 4e9,
            "counter": "XLA",
        }

    monkeypatch.setattr(matrix, "compile_cell", compile_cell)
    return seen


def test_the_matrix_has_all_methods_heads_dtypes_and_steps():
    for device in matrix.MAIN:
        of_device = [
            run
            for name, run in matrix.cells()
            if name == device and run.bert == runs.TINY
        ]
        assert {run.method.split("(")[0] for run in of_device} == {*METHODS}
        assert {run.head for run in of_device} == {*runs.HEADS}
        assert {(run.dtype, run.step) for run in of_device} == {
            (dtype, step) for dtype in DTYPES for step in STEPS
        }
        assert len(of_device) == 4 * (len(METHODS) + len(runs.HEADS) - 1)


def test_the_default_method_is_compiled_for_all_devices():
    cells = matrix.cells()
    assert len({matrix.key(*cell) for cell in cells}) == len(cells)
    for device in DEVICES:
        of_device = [run for name, run in cells if name == device]
        assert {DeviceRun(dtype=d, step=s) for d in DTYPES for s in STEPS} <= {
            *of_device
        }
    assert {run.bert for _, run in cells} == {*runs.SIZES}


def test_what_a_file_has_is_not_compiled_again(compiled, tmp_path):
    path = tmp_path / "devices.json"
    wanted = matrix.cells()[:3]
    first = matrix.compile_all(wanted[1:], path, tmp_path)
    assert compiled == wanted[1:]
    compiled.clear()
    assert matrix.compile_all(wanted, path, tmp_path)[1:] == first
    assert compiled == wanted[:1]
    kept = read_json(path)
    # In the order of the matrix.
    keys = [matrix.key_of(cell) for cell in kept["cells"]]
    assert keys == [matrix.key(*one) for one in wanted]


@pytest.mark.parametrize("kind", [RuntimeError, UserError])
def test_a_refusal_is_the_reason(monkeypatch, tmp_path, kind):
    def refuse(*_):
        raise kind("first line\nsecond")

    monkeypatch.setattr(matrix, "_take", lambda *_: "a step")
    fake = types.SimpleNamespace(Refusal=RuntimeError, lower=refuse)
    monkeypatch.setitem(sys.modules, f"{accelerators.__name__}.compilers", fake)
    monkeypatch.setattr(accelerators, "compilers", fake, raising=False)
    cell = matrix.compile_cell("v5e", DeviceRun(), tmp_path)
    assert not cell["compiles"]
    assert cell["reason"].split(" second")[0] == "first line"
    fake.lower = lambda *_: 1 / 0
    # A defect is none.
    with pytest.raises(ZeroDivisionError):
        matrix.compile_cell("v5e", DeviceRun(), tmp_path)


def test_precision_does_not_follow_from_the_step_before(tmp_path):
    """TensorFlow's switch for float32 holds for a whole process."""
    runs.make(tmp_path)
    is_enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = is_enabled()
    try:
        for device, run in [
            ("h100", DeviceRun()),
            ("v5e", DeviceRun()),
            ("h100", DeviceRun()),
        ]:
            matrix._take(device, run, tmp_path)
            assert is_enabled() == (device == "v5e")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_tables_tell_what_is_refused_and_what_was_not_tried(compiled, tmp_path):
    lora = DeviceRun("lora")
    large = DeviceRun(bert="BERT-base", dtype="bfloat16")
    wanted = [("v5e", DeviceRun()), ("v5e", lora), ("h100", large)]
    path = tmp_path / "devices.json"
    matrix.compile_all(wanted[:2], path, tmp_path)
    assert matrix.page_tables(matrix.read(path))["sizes"] == matrix.NO_SIZES
    matrix.compile_all(wanted, path, tmp_path)
    texts = matrix.page_tables(matrix.read(path))
    assert "by tensorflow 2, jax 1: 3 of" in texts["all devices"]
    assert "| `v5e` | float32 | not tried |" in texts["all devices"]
    assert (
        "| `lora` | classification | not float32 | not tried | not tried | "
        "not tried |" in texts["matrix"]
    )
    # 1 GB at 3,350 GB/s.
    assert (
        "`h100` | 1.00 of 80 | 1.00 | 4 | 1.0 | 0.3 | 26,800 | memory |"
        in texts["sizes"]
    )


def test_the_page_has_the_tables_of_its_file():
    page = matrix.PAGE.read_text()
    results = read_json(matrix.RESULTS)
    for name, text in matrix.page_tables(results).items():
        begin, end = report.marks(name)
        assert f"{begin}\n{text}\n{end}" in page


def test_the_guide_names_the_devices_that_steps_are_compiled_for():
    results = read_json(matrix.RESULTS)
    page = (ROOT / "docs" / "accelerators.md").read_text()
    [line] = re.findall(r"Devices are\n(.*?)\.\n", page, re.DOTALL)
    assert re.findall("`(.*?)`", line) == [*DEVICES]
    for device in DEVICES:
        cells = [c for c in results["cells"] if c["device"] == device]
        assert cells and all(cell["compiles"] for cell in cells)


@compilers_program.needed
@pytest.mark.newer_stack
def test_two_steps_compile(tmp_path):
    run_command(
        compilers_program.PYTHON,
        "-m",
        "lab.devices.matrix",
        *(f"--device={device}" for device in matrix.MAIN),
        *("--method=houlsby", "--head=classification", "--dtype=bfloat16"),
        *(
            "--step=prediction",
            "--bert=tiny",
            f"--json={tmp_path / 'two.json'}",
        ),
        cwd=ROOT,
        env=compilers_program.environment(),
        timeout=compilers_program.LONG,
        check=True,
    )
    cells = read_json(tmp_path / "two.json")["cells"]
    assert [cell["device"] for cell in cells] == list(matrix.MAIN)
    for cell in cells:
        assert cell["compiles"]
        assert cell["flops"] > 10**6
        assert cell["memory"] > cell["arguments"] > 10**4
