"""Extras take part in a run that asks for them."""

import pathlib
import re

import pytest
from conftest import read_json

from adapter_bert.training import extras

pytestmark = pytest.mark.older_stack
GUIDE = pathlib.Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_an_extra_of_a_users_own_is_the_guides(
    classify, tiny_flags, tmp_path, monkeypatch
):
    """It is one class and one line, and other runs do not import it."""
    text = GUIDE.read_text(encoding="utf-8")
    [code] = [
        block
        for block in re.findall("```python\n(.*?)```", text, re.DOTALL)
        if "(Extra)" in block
    ]
    assert len(code.splitlines()) <= 25
    monkeypatch.syspath_prepend(tmp_path)
    asked = []

    def asks(model):
        asked.append(model.experiment.do_train)
        return model.experiment.do_train

    monkeypatch.setitem(extras.EXTRAS, "carbon_cost:CarbonCost", asks)
    tiny_flags.update(num_train_epochs=1, do_eval=True)
    with pytest.raises(ModuleNotFoundError):
        classify(**tiny_flags)
    (tmp_path / "carbon_cost.py").write_text(code, encoding="utf-8")
    classify(**tiny_flags)
    cost = tiny_flags["output_dir"] / "carbon.json"
    assert read_json(cost)["grams"] > 0
    cost.unlink()
    classify(**{**tiny_flags, "do_train": False})
    assert not cost.exists()
    assert asked == [True, True, False]
