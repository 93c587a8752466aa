"""docs/comparison.md has the numbers that were measured."""

import re

import pytest
from conftest import ROOT, read_json

pytestmark = pytest.mark.older_stack

PAGE = (ROOT / "docs" / "comparison.md").read_text()
RESULTS = ROOT / "lab" / "results"


def cells(words):
    """The numbers of speed and of memory in the row with some words.

    Those of MiniLM, then those of BERT-base, which are in brackets.
    """
    [row] = [x for x in PAGE.splitlines() if x[:1] == "|" and words in x]
    parts = [cell.partition("(") for cell in row.split("|")[2:4]]
    return [
        [re.findall(r"[\d.]+", part) for part in (small, base)]
        for small, _, base in parts
    ]


def check_range(values, shown):
    """Least and greatest are as shown, in the digits that are shown."""
    assert len(shown) == 2
    for value, text in zip((min(values), max(values)), shown):
        digits = len(text.partition(".")[2])
        assert f"{value:.{digits}f}" == text


@pytest.mark.parametrize(
    "words, kind, padding",
    [
        ("training; peer pads", "train", "dynamic"),
        ("training; peer groups", "train", "grouped"),
        ("prediction; peer pads", "predict", "dynamic"),
    ],
)
def test_the_comparison_with_adapters(words, kind, padding):
    path = RESULTS / "compare.json"
    comparisons = read_json(path)["comparisons"]
    speed, memory = cells(words)
    for place, model in enumerate(("minilm", "base")):
        cases = [
            c
            for name, c in comparisons.items()
            if name.startswith(kind) and model in name and padding in c["ratio"]
        ]
        if not cases:
            assert speed[place] == memory[place] == []
            continue
        check_range(
            [c["ratio"][padding]["median"] for c in cases], speed[place]
        )
        sizes = [c["memory_bytes"] for c in cases]
        check_range(
            [size["ours"] / size[padding] for size in sizes], memory[place]
        )


def test_the_comparison_of_whole_programs():
    """The page has the peer's time divided by ours."""
    record = read_json(RESULTS / "start.json")
    ratios = record["summary"]["whole small run"]["ratio"]
    speed, _ = cells("a small training from the command")
    check_range([1 / ratio["median"] for ratio in ratios.values()], speed[0])


@pytest.mark.parametrize(
    "words, ours, peer",
    [
        ("against `adapters`' `BatchSplit`", "houlsby", "adapterhub"),
        ("against peft's `adapter_names`", "lora", "peft"),
    ],
)
def test_the_comparison_of_many_tasks(words, ours, peer):
    rates = read_json(RESULTS / "serving.json")["rates"]
    cases = [
        case
        for of_model in rates.values()
        for of_length in of_model.values()
        for case in of_length.values()
    ]
    speed, memory = cells(words)
    check_range(
        [
            c[ours]["mixed"]["median"] / c[peer]["mixed"]["median"]
            for c in cases
        ],
        speed[0],
    )
    sizes = [[c[who]["memory_bytes"] for who in (ours, peer)] for c in cases]
    check_range([a["median"] / b["median"] for a, b in sizes], memory[0])
