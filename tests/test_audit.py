"""`adapter-bert audit`: flipped labels are found, bad input is refused."""

import csv
import re

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    cells,
    open_bert,
    program_fixture,
    read_json,
    run_process,
    write_table,
)
from numpy.testing import assert_allclose
from task_files import make_rows

from adapter_bert.answering.embeddings import embed
from adapter_bert.commands import audit
from adapter_bert.flag_page import page_of

pytestmark = pytest.mark.newer_stack

run = program_fixture(audit)


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def suspects_of(run, path, tmp_path, bert):
    """The numbers of the rows of a file that are suspects."""
    out = tmp_path / path.stem
    run(train_file=path, init_checkpoint=bert, output_dir=out)
    return {int(row) for row, *_ in cells(out / audit.SUSPECTS_FILE)[1:]}


MORE = "the cat sat on mat . a dog ran fast ! film".split()


@pytest.mark.gate
def test_the_command_finds_flipped_labels(tiny_bert, tmp_path):
    wrong, other = {3, 30, 50, 77}, {"good": "bad", "bad": "good"}
    rows = [[f"{text} {word}", x] for word in MORE for text, x in SENTENCES]
    for number in wrong:
        rows[number - 1][1] = other[rows[number - 1][1]]
    write_table(tmp_path / "rows.tsv", rows)
    outputs = []
    for name in "ab":
        out = tmp_path / name
        done = run_process(
            f"--train_file={tmp_path / 'rows.tsv'}",
            f"--init_checkpoint={tiny_bert}",
            f"--output_dir={out}",
            "--max_seq_length=32",
            program="audit",
        )
        outputs.append((out / audit.SUSPECTS_FILE).read_bytes())
    # In two processes.
    assert outputs[0] == outputs[1]
    header, *suspects = cells(out / audit.SUSPECTS_FILE)
    assert header == ["row", "line", "text", "label", "suggested", "score"]
    assert {int(row) for row, *_ in suspects[:4]} == wrong
    scores = [float(score) for *_, score in suspects]
    assert scores == sorted(scores) and scores[-1] < 0.5
    for row, line, text, label, suggested, _ in suspects:
        assert int(line) == int(row) + 1
        assert text.startswith(SENTENCES[(int(row) - 1) % 8][0])
        assert {label, suggested} == {"good", "bad"}
    about = read_json(out / audit.AUDIT_FILE)
    assert about["rows"] == 96 and about["suspects"] == len(suspects)
    assert np.sum(about["joint"]) == pytest.approx(96, abs=0.5)
    assert 3 <= about["wrong_labels"] <= 8
    assert "frozen layers: 96/96 rows, " in done.stderr


def test_pairs_are_read_together_and_apart(tiny_bert):
    """Means of both layers of the pair, and how far the texts are apart."""
    texts = [text for text, _ in SENTENCES]
    bert = open_bert(tiny_bert)
    pairs = make_rows(*texts, text_b=texts[1:] + texts[:1])
    vectors = audit.layer_means(bert, pairs, 32, 8)
    size = bert.config.hidden_size
    assert vectors.shape == (8, 4 * size)
    both = list(zip(pairs.text_a, pairs.text_b))
    together = embed(bert, both, pooling="mean", layers=(0, 1))
    assert_allclose(vectors[:, : 2 * size], together, atol=1e-5)
    alone = embed(bert, texts, pooling="mean", layers=(0, 1))
    apart = np.abs(alone - np.roll(alone, -1, axis=0))
    assert_allclose(vectors[:, 2 * size :], apart, atol=1e-5)
    same = audit.layer_means(bert, make_rows(*texts), 32, 8)
    assert_allclose(same, alone, atol=1e-5)


@pytest.mark.gate
@pytest.mark.real_data
def test_wrong_labels_of_texts_with_several_rows_are_found(
    run, shared_dir, pretrained_dir, tmp_path
):
    place = shared_dir / "cases/audit"
    wrong = read_json(place / "flipped.json")
    once = read_csv(place / "flipped.csv")
    texts = {once[number - 1][0] for number in wrong}
    path = place / "flipped_dup.csv"
    rows = read_csv(path)
    copies = {n for n, (text, _) in enumerate(rows, 1) if text in texts}
    assert len(copies) == 24
    assert copies <= suspects_of(run, path, tmp_path, pretrained_dir)


@pytest.mark.real_data
def test_a_label_with_one_row_is_named_and_no_suspect(
    run, shared_dir, pretrained_dir, tmp_path, caplog
):
    path = shared_dir / "cases/audit/rare1.csv"
    assert 81 not in suspects_of(run, path, tmp_path, pretrained_dir)
    assert "the 5 folds, whose guesses are poor: refund_status (1);" in (
        caplog.text
    )


PLAIN = list(zip("abcdef", "xyxyxy"))
HEAD = {"tuning_method": "head"}
# Rows, changes of flags, and what the message names.
BAD = [
    (
        [("a", "x"), ("b", "y"), ("a", "x")],
        {},
        "holds 2 different texts, but --folds is 5",
    ),
    ([(x, "x") for x in "abcdef"], {}, "holds only the label 'x'"),
    ([("a", "1"), ("b", "2")] * 3, {"regression": True}, "one label"),
    ([], {"train_file": "", "task_name": "MRPC"}, "--data_dir is missing"),
    ([], {"train_file": ""}, "--task_name is missing"),
    *(
        (PLAIN, {name: value, **more}, f"--{name} {message}")
        for name, value, more, message in (
            ("folds", 1, {}, "is 1"),
            ("cpu_lanes", 2, {}, "means nothing without --tuning_method"),
            ("calibrate", True, HEAD, "is for a run"),
            ("init_checkpoint", "", {}, "is missing"),
            ("learning_rate", 1e-3, {}, "means nothing without --tuning_"),
            ("eval_batch_size", 9, {}, "means nothing without --tuning_"),
            ("output_dir", "", {}, "is missing"),
        )
    ),
    (PLAIN, {"class_weights": '{"z": 2}', **HEAD}, "unknown label 'z'"),
    (PLAIN, {"adapter": "missing"}, "leave it out"),
]


@pytest.mark.parametrize("rows, changes, message", BAD)
def test_bad_input_is_refused_in_one_line(
    run, tiny_bert, tmp_path, rows, changes, message
):
    write_table(tmp_path / "rows.tsv", rows)
    flags = {
        "train_file": tmp_path / "rows.tsv",
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "max_seq_length": 32,
        **changes,
    }
    refusals.check(lambda: run(**flags), message)
    assert not (tmp_path / "out" / audit.SUSPECTS_FILE).exists()


def test_help_has_the_flags_that_are_taken(run):
    shown = page_of(audit, "audit")
    assert "--folds N" in shown and "--tuning_method TEXT" in shown
    assert "--text_a_column TEXT" in shown
    for name in audit.REFUSED:
        flag = re.compile(rf"^  --(\[no\])?{name}\b", re.M)
        assert not flag.search(shown), name
