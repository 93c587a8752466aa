"""The comparison of a BERT in int8 with itself in float32."""

import re

import pytest
from conftest import SENTENCES, write_table
from tiny_artifacts import make_artifact

from adapter_bert.errors import UserError
from lab.speed import base_dtype

pytestmark = pytest.mark.newer_stack

LABELS = {"bad": "0", "good": "1"}
DESCRIPTION = {"name": "sst-2", "labels": ["0", "1"], "pairs": False}


def test_both_answer_the_dev_set(run_main, tiny_bert, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    make_artifact(adapter, tiny_bert, "ia3", description=DESCRIPTION)
    rows = [(text, LABELS[label]) for text, label in SENTENCES]
    write_table(tmp_path / "dev.tsv", rows, ("sentence", "label"))
    named = f"sst-2={tmp_path}={adapter}"
    run_main(base_dtype, tiny_bert, named, "--rounds=1")
    found = capsys.readouterr().out
    (line,) = [x for x in found.splitlines() if x.startswith("| sst-2")]
    assert re.search(rf"\| {len(rows)} \| (\d+\.\d\d% \| ){{2}}", line)
    some, whole = re.search(r"weights: ([\d,]+) of ([\d,]+)", found).groups()
    assert int(some.replace(",", "")) < 0.5 * int(whole.replace(",", ""))
    with pytest.raises(UserError, match="expected TASK=DATA=ADAPTER"):
        run_main(base_dtype, tiny_bert, f"sst-2={adapter}")
