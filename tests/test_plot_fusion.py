"""Heatmaps of what fusions attend to."""

import json

import numpy as np
import pytest
from conftest import own_lines, run_process
from fake_runs import FakeRuns

from adapter_bert.methods.registry import parse
from adapter_bert.training import fusion_report

pytestmark = pytest.mark.newer_stack


@pytest.fixture
def fake(tmp_path, tiny_config):
    return FakeRuns(tmp_path, tiny_config)


METHOD = "fusion(a, b)"
KNOWN = "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=8)}, first=1)"


def test_shares_are_means_over_rows(tiny_config):
    attention = np.array([[[0.25, 0.75]], [[0.75, 0.25]], [[0.2, 0.8]]])
    found = fusion_report.shares(parse(KNOWN), tiny_config, attention)
    assert found["adapters"] == ["a", "b"]
    assert found["places"] == [[1, "ffn"]]
    np.testing.assert_allclose(found["weights"], [[0.4, 0.6]])


def test_equal_numbers_give_equal_bytes():
    shown = {
        "adapters": ["a", "b"],
        "places": [[0, "attention"], [0, "ffn"]],
        "weights": [[0.1, 0.9], [0.7, 0.3]],
    }
    first, second = (fusion_report.heatmaps({"t": shown}) for _ in range(2))
    assert first == second
    other = {**shown, "weights": [[0.2, 0.8], [0.7, 0.3]]}
    assert fusion_report.heatmaps({"t": other}) != first


def add(fake, task, seed, weights, score, rate=1e-3, adapters=("a", "b")):
    fake.add(task, METHOD, {"accuracy": score}, rate=rate, seed=seed)
    folder = fake.folder / task / str(fake.count - 1)
    shown = {
        "adapters": list(adapters),
        "places": [[0, "ffn"]],
        "weights": [weights],
    }
    (folder / "fusion_attention.json").write_text(json.dumps(shown))


def draw(fake, check=True):
    return run_process(
        str(fake.folder),
        f"--output_dir={fake.folder / 'out'}",
        program="plot_fusion",
        check=check,
    )


def test_each_task_has_the_mean_of_its_best_rate(fake):
    add(fake, "rte", 1, [0.2, 0.8], 0.5)
    add(fake, "rte", 2, [0.4, 0.6], 0.6)
    for seed in (1, 2):
        add(fake, "rte", seed, [0.9, 0.1], 0.4, rate=1e-2)
    add(fake, "spam", 1, [1.0, 0.0], 0.9)
    fake.add("spam", "full", {"accuracy": 1.0})
    draw(fake)
    out = fake.folder / "out" / "fusion_attention"
    found = json.loads(out.with_suffix(".json").read_text())
    np.testing.assert_allclose(found["rte"]["weights"], [[0.3, 0.7]])
    assert found["rte"]["runs"] == 2
    assert found["spam"]["weights"] == [[1.0, 0.0]]
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "other,words",
    [
        (("a", "c"), "are of different adapters; expected one library"),
        (None, "no fusion in"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(fake, other, words):
    if other:
        add(fake, "rte", 1, [0.2, 0.8], 0.5)
        add(fake, "rte", 2, [0.2, 0.8], 0.5, adapters=other)
    else:
        fake.add("rte", "full", {"accuracy": 1.0})
    done = draw(fake, check=False)
    assert done.returncode == 1
    assert words in own_lines(done.stderr)[-1]
