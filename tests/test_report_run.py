"""Curves, tables and norms of a run."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import refusals
from conftest import write_table
from html_reader import Page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.summary import Writer
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert import files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.reports import report_run
from adapter_bert.reports.curves import read_curves
from adapter_bert.reports.html_page import page
from adapter_bert.reports.known_scores import read_table
from adapter_bert.reports.report_run import (
    calibration_sections,
    evaluation_sections,
    norm_section,
)
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.training.calibrating import fit

pytestmark = pytest.mark.newer_stack


def write_curve(folder, name, points):
    writer = Writer(str(folder))
    for step, value in points:
        writer.add_scalar(name, value, step)
    writer.close()


def test_all_points_are_read_of_all_files(tmp_path):
    assert read_curves(tmp_path) == read_curves(tmp_path / "none") == {}
    steps = [(step, 0.5) for step in range(1, 1501)]
    write_curve(tmp_path, "loss", steps)
    write_curve(tmp_path, "f1", [(3, 0.25)])
    # Of a step that was done again the last value counts.
    write_curve(tmp_path, "f1", [(2, 1.0), (3, 0.5)])
    expected = {"loss": steps, "f1": [(2, 1.0), (3, 0.5)]}
    assert read_curves(tmp_path) == expected


def test_a_cut_file_keeps_its_beginning(tmp_path):
    points = [(step, float(step)) for step in range(20)]
    write_curve(tmp_path, "loss", points)
    [path] = tmp_path.iterdir()
    content = path.read_bytes()
    for kept in (0.0, 0.5, 0.9):
        path.write_bytes(content[: int(kept * len(content))])
        curve = read_curves(tmp_path).get("loss", [])
        assert curve == points[: len(curve)] and (curve or not kept)
        assert len(curve) < 20
    path.write_bytes(b"no events" * 30)
    assert read_curves(tmp_path) == {}


def shown(*sections):
    made = Page(page("Run", sections).decode())
    made.check()
    return made


def shown_tables(folder):
    return shown(*evaluation_sections(folder, 2))


def test_a_confusion_matrix_has_labels_on_both_sides(tmp_path):
    rows = [("<bad>", "3", "1"), ("good", "0", "0")]
    header = ("label", "<bad>", "good")
    write_table(tmp_path / "eval_confusion.tsv", rows, header)
    made = shown_tables(tmp_path)
    heads = [(a["scope"], text) for a, text in made.all("th")]
    assert heads[1:] == [
        ("col", "<bad>"),
        ("col", "good"),
        ("row", "<bad>"),
        ("row", "good"),
    ]
    assert made.texts("td") == ["3", "1", "0", "0"]
    # What is right is not known by its shade alone.
    assert made.texts("strong") == ["3", "0"]
    styles = [attributes["style"] for attributes, _ in made.all("td")]
    assert "0.30" in styles[0] and "0.10" in styles[1] and "0.00" in styles[2]


def test_labels_that_differ_in_blanks_are_told_apart(tmp_path):
    rows = [("a", "3", "1"), ("a ", "0", "0")]
    write_table(tmp_path / "eval_confusion.tsv", rows, ("label", "a", "a "))
    write_table(tmp_path / "eval_labels.tsv", rows, ("label", "x", "y"))
    made = shown_tables(tmp_path)
    heads = [text for attributes, text in made.all("th")]
    assert heads.count("'a'") + made.texts("td").count("'a'") == 3
    assert "a" not in {*heads, *made.texts("td")}


def test_of_many_labels_the_greatest_confusions_are_shown(tmp_path):
    count = report_run.MOST_LABELS + 1
    labels = [f"l{i}" for i in range(count)]
    rows = [
        (label, *(str(i * (column == 0)) for column in range(count)))
        for i, label in enumerate(labels)
    ]
    write_table(tmp_path / "eval_confusion.tsv", rows, ("label", *labels))
    made = shown_tables(tmp_path)
    assert made.texts("td")[:4] == ["l0", "25", "l0", "24"]
    # Right answers are no confusions, nor what never happened.
    assert len(made.texts("td")) == 2 * (count - 1)
    assert f"of {count} labels" in made.texts("caption")[0]


def test_the_hardest_rows_say_which_they_are_first(tmp_path):
    names = "line label predicted probability_of_label loss text".split()
    text = "<script>" + "x" * 500
    rows = [(str(i), "a", "b", "0.1", "2.3", text) for i in range(40)]
    write_table(tmp_path / "eval_hardest.tsv", rows, names)
    made = shown_tables(tmp_path)
    order = ["line", "label", "predicted", "text"]
    assert made.texts("th")[:6] == [*order, "probability of label", "loss"]
    texts = made.texts("td")[2::5]
    assert len(texts) == report_run.MOST_ROWS
    assert {text[:10] for text in texts} == {"<script>xx"}
    assert all(len(text) < 310 and text.endswith("…") for text in texts)
    assert "The 25 dev rows" in made.text and "of 40 in" in made.text


def test_both_dev_sets_are_told_apart(tmp_path):
    for name in ("eval_labels", "eval_labels_mismatched", "eval_types"):
        write_table(tmp_path / f"{name}.tsv", [("a", "1")], ("label", "f1"))
    assert shown_tables(tmp_path).texts("caption") == [
        "Scores of each label",
        "Scores of each label, mismatched",
        "Scores of each type of entities",
    ]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("eval_labels", b"a\tb\n1\n", "eval_labels.tsv:2: 1 cells, expected 2"),
        ("eval_labels", b"a\tb\n\xff\t1\n", "not UTF-8"),
        ("eval_confusion", b"label\ta\nb\t1\n", "no confusion matrix"),
        ("eval_confusion", b"label\ta\na\tx\n", "no confusion matrix: invalid"),
        ("eval_confusion", b"label\ta\na\t-1\n", "matrix: expected numbers up"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, name, content, words):
    (tmp_path / f"{name}.tsv").write_bytes(content)
    refusals.check(lambda: evaluation_sections(tmp_path, 2), words)


CELLS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\n"),
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.tuples(st.just("x"), CELLS), min_size=1, max_size=4))
def test_a_table_is_read_as_it_was_written(tmp_path, table):
    path = tmp_path / "table.tsv"
    path.write_bytes("".join("\t".join(r) + "\n" for r in table).encode())
    assert read_table(path) == list(map(list, table))


@pytest.fixture
def artifact(tmp_path, tiny_config):
    """Writes an artifact of some values."""

    def make(values):
        config = {
            "method": "houlsby(size=4)",
            "base": {"fingerprint": "f"},
            "task": CLASSIFICATION,
            "tokenizer": {},
            "bert_config": dataclasses.asdict(tiny_config),
        }
        adapter_artifact.write(str(tmp_path / "adapter"), config, values)
        return tmp_path

    (tmp_path / "adapter").mkdir()
    return make


def shown_norms(folder):
    return shown(norm_section(folder, 2, "norms"))


def test_values_of_a_place_are_one_norm(artifact):
    place = "bert/encoder/layer_{}/output/adapters/{}"
    folder = artifact(
        {
            place.format(0, "weights1"): np.array([[3.0, 0.0]], np.float32),
            place.format(0, "biases1"): np.array([4.0], np.float32),
            place.format(1, "weights1"): np.array([[0.5]], np.float32),
            # BERT's own.
            "bert/encoder/layer_0/output/LayerNorm/gamma": np.ones(16),
            "output_bias": np.array([1.0, 1.0], np.float32),
        }
    )
    made = shown_norms(folder)
    assert made.texts("td") == ["5", "0.5", f"{math.sqrt(2):.4g}", "2"]
    assert len(made.all("figure")) == 1


def test_what_lacks_a_layer_has_a_dash(artifact):
    values = {
        "bert/encoder/layer_0/a/x": np.ones(1, np.float32),
        "bert/encoder/layer_1/b/x": np.ones(4, np.float32),
    }
    assert shown_norms(artifact(values)).texts("td") == ["1", "–", "–", "2"]


@pytest.mark.parametrize(
    "method", ["houlsby(size=4)", "lora(rank=2)", "prefix", "pals", "bitfit"]
)
def test_methods_are_shown_without_values_of_berts_own(
    tmp_path, tiny_bert, method
):
    assert "The run has no adapter here." in shown_norms(tmp_path).text
    task = restore_task(CLASSIFICATION, {}, "")
    make_artifact(tmp_path / "adapter", tiny_bert, method, task)
    made = shown_norms(tmp_path)
    assert "LayerNorm" not in "".join(made.texts("th"))
    adds_nothing = "adds nothing to the layers" in made.text
    assert adds_nothing == (method == "bitfit")
    assert len(made.all("figure")) == (method != "bitfit")


def test_the_calibration_is_shown(tmp_path):
    assert not calibration_sections(tmp_path, 2)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (90, 2)).astype(np.float32)
    likeliest = logits.argmax(axis=1)
    labels = np.where(rng.random(90) < 0.8, likeliest, 1 - likeliest)
    measured = np.arange(90) % 2 == 0
    path = tmp_path / "calibration.json"
    _, record = fit(logits, labels, measured, 0.5)
    for change, sentence in (
        ({}, "for a wanted precision of 0.5: "),
        ({"abstain_below": None}, "no least probability gives the wanted"),
        ({"abstain_at": None}, ""),
    ):
        record = {**record, **change}
        files.write_json(str(path), record)
        [made] = calibration_sections(tmp_path, 2)
        shown_page = shown(made)
        assert len(shown_page.all("figure")) == 1
        assert f"{record['before']:.4f}" in shown_page.texts("td")
        assert f"{record['after']:.4f}" in shown_page.texts("td")
        assert sentence in shown_page.text
        assert ("wanted" in shown_page.text) == bool(sentence)
    files.write_json(str(path), {**record, "after": "x"})
    call = functools.partial(calibration_sections, tmp_path, 2)
    refusals.check(call, "a run's calibration: it has no after")
