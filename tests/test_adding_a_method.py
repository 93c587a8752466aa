"""The example of docs/adding_a_method.md."""

import re
import sys

import numpy as np
import pytest
import refusals
from conftest import ROOT, run_command
from tiny_model import TASK, TinyModel

from adapter_bert.bert import encoder
from adapter_bert.methods.registry import METHODS, parse
from adapter_bert.tasks import task_model

PAGE = (ROOT / "docs" / "adding_a_method.md").read_text()
# Its one Python block.
[SOURCE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def offset(monkeypatch):
    """The page's class in the table."""
    names = {"__name__": "methods.offset"}
    exec(compile(SOURCE, "docs/adding_a_method.md", "exec"), names)
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
    (tmp_path / "offset.py").write_text(SOURCE)
    settings = f"--config={ROOT / 'pyproject.toml'}"
    for command in ("check", "format --check"):
        words = *command.split(), settings, tmp_path / "offset.py"
        done = run_command(sys.executable, "-m", "ruff", *words)
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
