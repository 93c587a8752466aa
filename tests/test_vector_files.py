"""`adapter-bert predict --embeddings`, and the files that it writes."""

import json
import shutil

import numpy as np
import pytest
import refusals
from conftest import (
    SENTENCES,
    TINY_WORDS,
    program_fixture,
    read_json_lines,
    trained_task,
    write_json,
    write_lines,
    write_table,
)
from numpy.testing import assert_array_equal
from tiny_artifacts import make_artifact

from adapter_bert.answering import vector_files
from adapter_bert.answering.embeddings import VectorForm, embed
from adapter_bert.commands import predict

pytestmark = pytest.mark.newer_stack
ROWS = [text for text, _ in SENTENCES]


ask = program_fixture(predict)


@pytest.fixture
def flags(tiny_bert, tmp_path):
    write_lines(tmp_path / "rows.txt", ROWS)
    return {"init_checkpoint": tiny_bert, "input": tmp_path / "rows.txt"}


def read(path):
    """The vectors of a file, float32 [N, D]."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".tsv":
        return np.loadtxt(path, np.float32, delimiter="\t", ndmin=2)
    return np.float32([line["vector"] for line in read_json_lines(path)])


def test_every_kind_of_file_has_the_same_bits(ask, flags, bert, tmp_path):
    more = {"embeddings": "mean", "layers": "-1,-2", "normalize": True}
    expected = embed(bert, ROWS, layers=(-1, -2), normalize=True)
    for ending in (".npy", ".tsv", ".jsonl"):
        output = tmp_path / f"vectors{ending}"
        ask(**flags, **more, output=output)
        assert_array_equal(read(output), expected)
        assert read(output).dtype == np.float32


def test_adapter_and_pairs(ask, flags, bert, tiny_bert, tmp_path):
    make_artifact(tmp_path / "a", tiny_bert, "lora(rank=2)")
    task = trained_task(bert, tmp_path / "a")
    output = tmp_path / "vectors.npy"
    ask(**flags, adapter=tmp_path / "a", embeddings="cls", output=output)
    expected = embed(bert, ROWS, task=task, pooling="cls")
    assert_array_equal(read(output), expected)
    pairs = list(zip(ROWS, ROWS[1:]))
    write_table(tmp_path / "pairs.tsv", pairs, ("said", "then"))
    flags["input"] = tmp_path / "pairs.tsv"
    ask(**flags, columns="said,then", embeddings="mean", output=output)
    assert_array_equal(read(output), embed(bert, pairs))


def test_the_letter_case_is_what_is_asked(
    ask, flags, tiny_bert, tmp_path, capsys
):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    # Words without capital or small letters tell no case.
    signs = [*TINY_WORDS[:5], "\ud55c", *map(chr, range(0x4E00, 0x4E18))]
    assert len(signs) == len(TINY_WORDS)
    write_lines(folder / "vocab.txt", signs)
    flags["input"].write_text("\ud55c\n")
    flags["init_checkpoint"] = folder

    def first_word(**more):
        ask(**flags, embeddings="tokens", **more)
        return json.loads(capsys.readouterr().out)["tokens"][1]

    assert first_word() == "[UNK]"
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False})
    assert first_word() == "\ud55c"
    assert first_word(do_lower_case=True) == "[UNK]"


def test_tokens(ask, flags, bert, tmp_path, capsys):
    flags["input"].write_text("the cat\nsat\n")
    ask(**flags, embeddings="tokens", output=tmp_path / "t.jsonl")
    lines = read_json_lines(tmp_path / "t.jsonl")
    assert lines[0]["tokens"] == ["[CLS]", "the", "cat", "[SEP]"]
    expected = embed(bert, ["the cat", "sat"], pooling="tokens")
    for line, (tokens, vectors) in zip(lines, expected):
        assert list(line) == ["tokens", "vectors"]
        assert line["tokens"] == tokens
        assert_array_equal(np.float32(line["vectors"]), vectors)
    ask(**flags, embeddings="tokens")
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "t.jsonl").read_text()


@refusals.table(
    {
        "an ending": ({"output": "v.bin"}, "v.bin ends in .bin", ".jsonl"),
        "no ending": ({"output": "v"}, "ends in nothing, expected .npy"),
        "tokens": ({"embeddings": "tokens"}, "tokens are written as JSON L"),
        "no layers": ({"layers": "-1,x"}, "--layers is -1,x"),
        "answers of a layer": (
            {"embeddings": None, "layers": "-1"},
            "--layers means nothing without --embeddings",
        ),
        "three texts": ({"columns": "a,b,c"}, "a vector is of one text or of"),
        "reasons": ({"explain": True}, "--explain is for answers"),
        "words without case": (
            {"do_lower_case": False},
            "no words with capital letters",
        ),
        "answers of a case": (
            {"embeddings": None, "do_lower_case": True},
            "--do_lower_case is for vectors without --adapter",
        ),
    }
)
def test_wrong_flags(ask, flags, tmp_path, call, parts):
    flags = {"embeddings": "cls", "output": "v.npy", **flags, **call}
    flags["output"] = tmp_path / flags["output"]
    named = {name: x for name, x in flags.items() if x is not None}
    refusals.check(lambda: ask(**named), *parts)
    assert not flags["output"].exists()


def test_two_adapters_are_refused(ask, flags, tiny_bert, tmp_path, shelf):
    for seed, name in enumerate(("first", "second")):
        make_artifact(tmp_path / name, tiny_bert, "ia3", seed=seed)
        shelf.add(str(tmp_path / name), name)
    flags.update(library=shelf.path, task="all", embeddings="cls")
    refusals.check(lambda: ask(**flags), "one adapter", "first, second")


def test_stdin_does_not_tell_how_many_rows(ask, flags, tmp_path):
    flags.update(embeddings="cls", output=tmp_path / "v.npy")
    del flags["input"]
    refusals.check(lambda: ask(**flags), "stdin", "pass --input")


def test_count_of_rows_must_hold(tmp_path):
    part = np.zeros((2, 3), np.float32)
    path = tmp_path / "v.npy"
    refusals.check(
        lambda: vector_files.write(str(path), [part], 3, 3), "had 3 rows", "2"
    )
    assert not list(tmp_path.iterdir())
    vector_files.check_path("", VectorForm("tokens"))
