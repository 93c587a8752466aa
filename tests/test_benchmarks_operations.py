"""What a step's operations take, from a trace of TensorFlow."""

import json

import numpy as np
import pytest
from engine_jobs import make_job

from adapter_bert.methods.registry import parse
from lab.speed import compare, operations

pytestmark = pytest.mark.newer_stack


@pytest.mark.parametrize(
    "label, name",
    [
        ("a/MatMul = MatMul(x, y)", "MatMul"),
        ("a = _MklMatMul(x, y)", "MatMul"),
        ("a = _MklNativeFusedMatMul(x, y, z)", "FusedMatMul"),
        ("a = _FusedMatMul(x, y, z)", "FusedMatMul"),
        ("_SOURCE = NoOp()", "NoOp"),
    ],
)
def test_an_operation_is_one_whoever_computes_it(label, name):
    assert operations.LABEL.search(label)[1] == name


def test_a_step_is_traced(tiny_config, tmp_path):
    job = make_job(tiny_config, tmp_path, parse("houlsby(size=4)"))
    shape = (4, 7)
    batch = {
        "input_ids": np.ones(shape, np.int32),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "label_ids": np.zeros(4, np.int32),
        "row": np.arange(4, dtype=np.int32),
    }
    graph, step = operations.one_step(job, batch)
    found = list(operations.traces(graph, step, "float32", 2))
    assert len(found) == 2
    for seconds in found:
        # Products, attention's products, gelu's and dropout's are all inside.
        assert {"MatMul", "Softmax", "Rsqrt", "Cast"} <= set(seconds)
        assert all(value > 0 for value in seconds.values())
        assert not any(name.endswith("PartitionedCall") for name in seconds)


def test_the_table_has_shares_of_all(tmp_path):
    found = operations.summarize(
        [
            {"MatMul": 0.06, "Mul": 0.02},
            {"MatMul": 0.06, "Mul": 0.06, "Erf": 0.02},
        ]
    )
    assert found["products"] == 60
    assert found["all"] == 60 + 40 + 10
    assert list(found["operations"]) == ["MatMul", "Mul", "Erf"]
    results = {
        **compare.environment(),
        "rows": "rows",
        "length": 7,
        "steps": 2,
        "types": {"float32": found},
    }
    assert json.loads(json.dumps(results)) == results
    table = operations.to_markdown(results)
    assert "| products of matrices | 60 (55%) |" in table
    assert "| `Mul` | 40 (36%) |" in table
    assert "`MatMul`" not in table


def test_the_page_has_the_marks_once():
    page = compare.PAGE.read_text()
    assert page.count(operations.BEGIN) == page.count(operations.END) == 1
