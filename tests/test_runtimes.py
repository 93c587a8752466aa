"""Files of TensorFlow Lite and ONNX Runtime, in their own runtimes."""

import contextlib
import os
import re
import sys

import numpy as np
import pytest
import refusals
from conftest import (
    ROOT,
    TINY_WORDS,
    entry_point,
    module_fixture,
    own_lines,
    random_weights,
    read_json,
    run_command,
    trained_task,
    write_bert,
)
from ids_folder import FORMS, HAS_ONNX, Folder
from test_joint_answers import PAIR, PAIRS, TEXTS
from tiny_artifacts import CLASSIFICATION, make_adapters, make_artifact

from adapter_bert import environments
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert import encoder
from adapter_bert.commands import export as export_command
from adapter_bert.graph import runtimes
from adapter_bert.graph.runtimes import ONNX, TFLITE

# The environment of `make onnx`; this one may lack its packages.
NAMED = os.environ.get(export_command.PYTHON)
MADE = ROOT / ".venv-onnx"
PYTHON = NAMED or str(MADE / "bin/python")
# Method and task by a name.
ADAPTERS = {
    "small": ("houlsby(size=3, nonlinearity='gelu_erf')", CLASSIFICATION),
    "pair": ("lora(rank=3)", PAIR),
}
# What those do not compute.
METHODS = (
    "houlsby(size=4, gating=True, nonlinearity='mish')",
    "pals(size=6, heads=2)",
    "loreft(rank=2)",
    "prefix(length=3, inner_size=8, gating=True)",
    "stack(mad_x(size=4, inverse_size=3), new_words(count=3))",
    "union(dora(rank=2), vera(rank=5, targets='value'), compacter(8, n=4))",
    "diff_pruning(sparsity=0.05)",
    "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=8)})",
    "average({'a': houlsby(4), 'b': lora(rank=2)}, weights='3,1')",
)


def make_base(folder, layers):
    """A BERT with the exact gelu, whose matrices are worth rounding.

    One word is a thousand times as large as the others.
    """
    config = encoder.BertConfig(
        vocab_size=len(TINY_WORDS),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_act="gelu_erf",
    )
    values = random_weights(config)
    values["bert/embeddings/word_embeddings"][-1] *= 1000
    return str(write_bert(folder, TINY_WORDS, config, values))


@module_fixture
def base(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("base"), 2)


@module_fixture
def bert(base):
    return FrozenBert.open(base)


@module_fixture
def made(base, tmp_path_factory):
    return make_adapters(tmp_path_factory.mktemp("made"), base, ADAPTERS)


@pytest.fixture
def export(bert, tmp_path):
    """Writes a folder of an adapter, and loads it without this project."""

    def write(folder, form, weights="float32"):
        task = load_task(bert, folder, None)
        place = tmp_path / "file"
        runtimes.export(bert, "mine", task, str(place), form, weights)
        return Folder(place, form)

    return write


# The outputs


@module_fixture
def short(tmp_path_factory):
    """The folder of a BERT of one layer, which is soon converted; it, open."""
    folder = make_base(tmp_path_factory.mktemp("short"), 1)
    return folder, FrozenBert.open(folder)


@pytest.mark.newer_stack
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_written(short, tmp_path, form, method):
    base, bert = short
    make_artifact(tmp_path / "adapter", base, method)
    task = trained_task(bert, tmp_path / "adapter")
    place = str(tmp_path / "file")
    assert runtimes.export(bert, "mine", task, place, form) <= 1e-5


@pytest.mark.newer_stack
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name",
    [
        "architectures/distilbert",
        "architectures/albert",
        "architectures/mpnet",
        "roberta/roberta",
    ],
)
def test_a_model_like_bert_is_written(golden_dir, tmp_path, form, name):
    """Also one that does not look at segments, which are an input still."""
    base = str(golden_dir / name)
    make_artifact(tmp_path / "adapter", base, "ia3")
    bert = FrozenBert.open(base)
    task = trained_task(bert, tmp_path / "adapter")
    place = tmp_path / "file"
    assert runtimes.export(bert, "mine", task, str(place), form) <= 1e-5
    scores = Folder(place, form).ask(TEXTS)["scores"]
    assert scores.shape == (len(TEXTS), 2)


@pytest.mark.parametrize("form", FORMS)
def test_int8(made, export, form, tmp_path):
    whole = export(made["pair"], form)
    expected = whole.ask(PAIRS)["scores"]
    os.rename(tmp_path / "file", tmp_path / "whole")
    small = export(made["pair"], form, "int8")
    assert small.size < 0.8 * whole.size
    scores = small.ask(PAIRS)["scores"]
    assert 0 < np.abs(scores - expected).max() < 0.02
    assert 1e-5 < small.described["difference"] < 0.02
    assert (
        small.described["weights"] == "int8"
        and small.described["format"] == form
    )
    # Activations of a row are rounded without regard to other rows.
    batch = small.batch(PAIRS)
    for row, together in enumerate(scores):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        alone = small.run(one)["scores"][0]
        np.testing.assert_allclose(alone, together, atol=1e-6)


@pytest.mark.skipif(not HAS_ONNX, reason="as of `FORMS`")
@pytest.mark.parametrize("method", ["lora(rank=3)", METHODS[-1]])
def test_matrices_in_onnx_are_bytes(short, tmp_path, method):
    """Also words that a method with changes of its own reads, as they are."""
    import onnx
    import onnxruntime

    base, bert = short
    make_artifact(tmp_path / "adapter", base, method)
    task = trained_task(bert, tmp_path / "adapter")
    runtimes.export(bert, "mine", task, str(tmp_path / "file"), ONNX, "int8")
    path = str(tmp_path / "file/model.onnx")
    arrays = onnx.load(path).graph.initializer
    matrices = [x for x in arrays if len(x.dims) == 2 and min(x.dims) > 1]
    wide = [x for x in matrices if x.data_type != onnx.TensorProto.INT8]
    # Positions are no factor of a product.
    assert [tuple(x.dims) for x in wide] == [(32, 32)]
    # The runtime multiplies by the bytes.
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(path, options)
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    operations = {node.op_type for node in nodes}
    assert "MatMulNBits" in operations and "DequantizeLinear" not in operations


# What is not kept


@pytest.mark.newer_stack
def test_a_file_with_other_outputs_is_not_kept(
    made, export, monkeypatch, tmp_path
):
    whole = runtimes.RUNTIMES[TFLITE]

    def load(path):
        run = whole.load(path)
        return lambda batch: {k: v + 1e-3 for k, v in run(batch).items()}

    monkeypatch.setitem(runtimes.RUNTIMES, TFLITE, whole._replace(load=load))
    refusals.check(
        lambda: export(made["small"], TFLITE),
        "computes other outputs than Tensor",
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.newer_stack
def test_an_operation_that_a_runtime_lacks_is_named(
    made, export, monkeypatch, tmp_path
):
    """Here the error function, without what makes it the whole activation."""
    monkeypatch.setattr(
        "adapter_bert.bert.functional.for_runtimes", contextlib.nullcontext
    )
    refusals.check(
        lambda: export(made["small"], TFLITE), "it lacks the operations Erf"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.newer_stack
def test_a_model_that_is_too_large(made, export, monkeypatch):
    monkeypatch.setattr(runtimes, "GREATEST_SIZE", 2**10)
    refusals.check(
        lambda: export(made["small"], TFLITE), "of TensorFlow Lite holds less"
    )


# The command


@pytest.fixture
def command(base, tmp_path):
    """Runs `adapter-bert export --format=tflite`, within this process."""
    values = {
        "init_checkpoint": base,
        "output_dir": tmp_path / "out",
        "format": TFLITE,
    }
    with entry_point(export_command) as run:
        yield lambda **more: run(**{**values, **more})


def test_the_command_writes_a_file(command, made, tmp_path, caplog):
    command(adapter=f"mine={made['pair']}", max_seq_length=12)
    folder = Folder(tmp_path / "out", TFLITE)
    described = folder.described
    assert described["name"] == "mine"
    assert described["kind"] == "classification"
    assert described["columns"] == ["text", "text_b"]
    assert described["texts"] == [2] and described["labels"] == ["no", "yes"]
    assert described["inputs"]["input_ids"] == ["rows", "tokens"]
    assert sorted(described["files"]) == ["model.tflite", "tokenizer.json"]
    # Where the tokenizer's file cuts.
    assert described["max_seq_length"] == 12
    long = " ".join(["cat"] * 40)
    assert len(folder.tokenizer.encode(long, long).ids) == 12
    assert folder.ask(PAIRS)["scores"].shape == (len(PAIRS), 2)
    assert "which differs from TensorFlow by" in caplog.messages[-1]
    refusals.check(
        lambda: command(adapter=made["pair"]), "out is there already"
    )


@pytest.mark.newer_stack
@refusals.table(
    {
        "weights": (
            {"format": "saved_model", "weights": "int8"},
            "--weights=int8",
            "tflite",
        ),
        "vectors": ({"embeddings": "cls"}, "--embeddings", "saved_model"),
        "a type": ({"base_dtype": "int8"}, "--base_dtype is int8", "tflite"),
        "of adapters": ({"adapter_dtype": "bfloat16"}, "--adapter_dtype is"),
        "far away": ({"output_dir": "gs://bucket/out"}, "is no local folder"),
        "a full folder": ({"output_dir": ROOT}, "is there already"),
    }
)
def test_what_is_refused_before_a_model_is_opened(
    command, made, call, parts, monkeypatch
):
    monkeypatch.setattr(FrozenBert, "open", None)
    flags = {"adapter": made["pair"], **call}
    refusals.check(lambda: command(**flags), *parts)


@pytest.mark.newer_stack
def test_tasks_that_are_no_file(
    command, base, made, tmp_path, monkeypatch, shelf
):
    monkeypatch.setattr(FrozenBert, "open", None)
    for name in ("pair", "small"):
        shelf.add(made[name], name)
    words = tmp_path / "words"
    make_artifact(words, base, "ia3", None, {"name": "masked_lm"})
    refusals.check(
        lambda: command(library=shelf.path), "takes one task", "pair, small"
    )
    refusals.check(
        lambda: command(adapter=words), "masked_lm", "--format=tflite; expected"
    )


@pytest.mark.newer_stack
def test_onnx_goes_on_in_its_environment(command, made, monkeypatch):
    calls = []

    def go_on_with(*arguments):
        calls.append(arguments)
        raise SystemExit

    monkeypatch.setattr(environments, "go_on_with", go_on_with)
    with pytest.raises(SystemExit):
        command(format=ONNX, adapter=made["pair"])
    [(packages, *rest)] = calls
    assert packages == ("onnxruntime", "tf2onnx")
    assert rest == ["export", "onnx", "ADAPTER_BERT_ONNX"]


@pytest.mark.newer_stack
@pytest.mark.skipif(HAS_ONNX, reason="this Python has ONNX's packages")
def test_without_its_packages_onnx_is_refused(command, made, monkeypatch):
    """Where a program has loaded TensorFlow, as from Python."""
    monkeypatch.setattr(environments, "go_on_with", lambda *_: None)
    monkeypatch.setattr(FrozenBert, "open", None)
    refusals.check(
        lambda: command(format=ONNX, adapter=made["pair"]),
        "lacks onnxruntime, tf2onnx; run `ad",
    )


# Programs of users


def snippets():
    """The programs in docs/export.md that read a folder, by their runtime."""
    text = (ROOT / "docs/export.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if "tokenizer.json" in block]
    assert len(blocks) == 2
    return {TFLITE: blocks[0], ONNX: blocks[1]}


@pytest.mark.parametrize("form", FORMS)
def test_the_page_s_program_runs_without_this_project(
    bert, made, form, tmp_path
):
    task = load_task(bert, made["pair"], None)
    runtimes.export(bert, "mrpc", task, str(tmp_path / "mrpc"), form)
    (tmp_path / "ask.py").write_text(
        f"{snippets()[form]}\nimport sys\n"
        "assert 'adapter_bert' not in sys.modules\nprint(labels)\n"
    )
    # -I keeps this checkout out.
    done = run_command(sys.executable, "-I", "ask.py", cwd=tmp_path, check=True)
    assert re.fullmatch(r"\['(no|yes)', '(no|yes)'\]\n", done.stdout)


NEEDS_ONNX = pytest.mark.skipif(
    # `make` writes this file when all is installed.
    not os.path.exists(NAMED or MADE / "installed"),
    reason=f"no {PYTHON}; `make onnx` makes it, {export_command.PYTHON} names "
    "another",
)


@NEEDS_ONNX
@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.skipif(HAS_ONNX, reason="this is its environment")
def test_onnx_in_its_environment():
    """The tests above that are skipped without ONNX's packages."""
    done = run_command(
        *(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(
            "-k",
            "onnx and not (environment or packages or little)",
            "tests/test_runtimes.py",
            "tests/test_one_row_all_ways.py",
        ),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d\d passed", done.stdout)
    assert "skipped" not in done.stdout


@pytest.mark.gate
@pytest.mark.parametrize(
    "form",
    [TFLITE, pytest.param(ONNX, marks=[NEEDS_ONNX, pytest.mark.newer_stack])],
)
def test_the_command_says_little(base, made, tmp_path, form):
    words = [
        f"--init_checkpoint={base}",
        f"--adapter={made['small']}",
        f"--output_dir={tmp_path / 'out'}",
        f"--format={form}",
        "--weights=int8",
    ]
    command = [sys.executable, "-m", "adapter_bert", "export", *words]
    done = run_command(*command, cwd=ROOT, check=True)
    lines = own_lines(done.stderr)
    assert "which differs from TensorFlow by" in lines[-1]
    assert len(lines) < 8
    described = read_json(tmp_path / "out/task.json")
    assert described["format"] == form
    assert (form == ONNX) == ("onnxruntime" in described["versions"])
