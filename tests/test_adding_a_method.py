"""Methods in one file: the example of docs/adding_a_method.md, and another."""

import dataclasses
import functools
import re
import sys

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, run_command
from numpy.testing import assert_allclose, assert_array_equal
from test_method_contract import check_alike
from tiny_model import TASK, TinyModel

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import choose_initial_values
from adapter_bert.methods.base import Declared, TuningMethod
from adapter_bert.methods.registry import METHODS, parse
from adapter_bert.tasks import task_model

RUFF = sys.executable, "-m", "ruff"
PAGE = (ROOT / "docs" / "adding_a_method.md").read_text()


@pytest.fixture(autouse=True)
def offset(monkeypatch):
    """The page's one Python block, and its class in the table."""
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"__name__": "methods.offset"}
    exec(compile(source, "docs/adding_a_method.md", "exec"), names)
    monkeypatch.setitem(METHODS, "offset", names["Offset"])


def test_the_example_is_a_method_like_any_other(tiny_config):
    method = parse("offset(scale=2.0)")
    assert parse(str(method)) == method
    base = encoder.BertConfig(vocab_size=30522)
    table = task_model.list_parameters(base, method, TASK.build_head)
    assert table.trained_count == 9_216 + 2 * 768 + 2
    tiny = TinyModel(tiny_config, method)
    plain = TinyModel(tiny_config, "head")
    assert np.array_equal(tiny.logits(), plain.logits())
    before = {n: v.numpy().copy() for n, v in tiny.variables.items()}
    tiny.train_one_step()
    for p in tiny.table.parameters:
        same = np.array_equal(before[p.name], tiny.variables[p.name].numpy())
        assert same != p.trained, p.name
    refusals.check(
        lambda: parse("offset(scale=-1.0)"), "expected a positive number"
    )


def test_the_example_has_the_form_that_is_asked_for(tmp_path):
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "offset.py").write_text(source)
    settings = f"--config={ROOT / 'pyproject.toml'}"
    for command in ("check", "format --check"):
        words = *RUFF, *command.split(), settings, tmp_path / "offset.py"
        done = run_command(*words)
        assert done.returncode == 0, done.stdout


@pytest.mark.older_stack
def test_the_example_trains_through_the_entry_point(classify, tiny_flags):
    unnamed = ("adapter_size", "learning_rate")
    flags = {k: v for k, v in tiny_flags.items() if k not in unnamed}
    classify(**flags, tuning_method="offset(scale=2.0)", do_eval=True)
    assert (flags["output_dir"] / "eval_results.json").exists()
    adapter = flags["output_dir"] / "adapter" / "adapter_config.json"
    assert "offset(scale=2.0)" in adapter.read_text()
    assert '"learning_rate": 0.001' in adapter.read_text()


class LengthsHooks(Hooks):
    """`x W m / |W|`, with the lengths `|W|` of the columns of W."""

    def project(self, name, inputs, dense, context):
        if f"{name}/length" not in self.values:
            return dense(inputs)
        length = tf.cast(self.values[f"{name}/length"], context.dtype)
        factor = length / tf.norm(dense.read("kernel"), axis=0)
        bias = dense.read("bias")
        return (dense(inputs) - bias) * factor + bias


@dataclasses.dataclass(frozen=True)
class Lengths(TuningMethod):
    """A trained length of each column of the queries' matrices."""

    name = "lengths"
    learning_rate = 1e-3
    hooks_class = LengthsHooks

    def variables(self, config, pooler=True):
        declared = {}
        for layer in range(config.num_hidden_layers):
            scope = f"bert/encoder/layer_{layer}/attention/self/query"
            lengths = encoder.OfPretrained(functools.partial(lengths_of, scope))
            declared[f"{scope}/length"] = Declared(
                (config.hidden_size,), lengths
            )
        return declared


def lengths_of(scope, read):
    return np.linalg.norm(read(f"{scope}/kernel"), axis=0)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_method_written_once_is_trained_mixed_and_exported(
    tiny_config, tiny_bert, tmp_path, monkeypatch
):
    """Of values that follow from BERT's, and of BERT's kernels."""
    monkeypatch.setitem(METHODS, "lengths", Lengths)
    method = parse("lengths")
    tiny, plain = (TinyModel(tiny_config, m) for m in (method, parse("head")))
    assert_allclose(tiny.logits(), plain.logits(), atol=1e-6)
    before = {n: v.numpy().copy() for n, v in tiny.variables.items()}
    for step in range(2):
        tiny.train_one_step(step)
    for p in tiny.table.parameters:
        same = np.array_equal(before[p.name], tiny.variables[p.name].numpy())
        assert same != p.trained, p.name
    base = open_init_checkpoint(str(tiny_bert)).weights
    first = choose_initial_values(tiny.table.parameters, base, None, seed=0)
    scope = "bert/encoder/layer_1/attention/self/query"
    expected = lengths_of(scope, base.read)
    assert_array_equal(first[f"{scope}/length"](), expected)
    texts = [str(method), "lora(rank=2)"]
    refused, _ = check_alike(tiny_bert, texts, tmp_path)
    assert not refused
