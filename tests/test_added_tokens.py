"""Tokens that were added to a vocabulary, in every file that names them.

The ids are those of transformers 4.57.1.
"""

from shutil import copy, copytree

import numpy as np
import pytest
import refusals
from conftest import (
    TINY_WORDS,
    open_bert,
    read_json,
    trained_task,
    write_json,
    write_lines,
)
from roberta_folders import BOTH, change, drop
from tiny_artifacts import make_artifact

from adapter_bert.checkpoints import written_form
from adapter_bert.commands import convert, merge
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.exchange import peft_words
from adapter_bert.graph.graph_tokenizer import GraphTokenizer
from adapter_bert.tasks.masked_lm import Pieces

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the cat new < > ##s \u4eac [unused1] ."
).split()
TEXTS = (
    "the<new>cat",
    "The <NEW> cats",
    "<new>\u4eac<e1>.",
    "the [unused1]",
    "new.<new>s",
)
NEW, E1 = 14, 15


def entry(number, content, **flags):
    """A token as `added_tokens_decoder` has it."""
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
    token = {"content": content, "normalized": True, **plain, **flags}
    return {str(number): token}


def listed(*entries):
    """The same as `tokenizer.json` has them."""
    special = [entry(n, w, special=True) for n, w in enumerate(WORDS[:5])]
    return {
        "added_tokens": [
            {"id": int(number), **token}
            for one in (*special, *entries)
            for number, token in one.items()
        ]
    }


def decoder(*entries, **more):
    merged = {key: value for one in entries for key, value in one.items()}
    return {"tokenizer_config": {"added_tokens_decoder": merged, **more}}


RAW = {"special": True, "normalized": False}
BLANKS = {"content": "<new>", "lstrip": True, "rstrip": True}
# Files next to the vocabulary, and the ids of the texts.
FOLDERS = {
    "added_tokens": (
        {"added_tokens": {"<new>": NEW, "<e1>": E1}},
        "5 14 6 | 5 14 6 10 | 14 11 15 13 | 5 1 1 1 | 7 13 14 1",
    ),
    "special ones": (
        {
            "added_tokens": {"<e1>": 14, "<new>": 15},
            "special_tokens_map": {
                "additional_special_tokens": ["<e1>", "<new>"],
                "cls_token": "[CLS]",
            },
        },
        "5 15 6 | 5 8 7 9 6 10 | 15 11 14 13 | 5 1 1 1 | 7 13 15 1",
    ),
    "map alone": (
        {
            "special_tokens_map": {
                "bos_token": "<e1>",
                "additional_special_tokens": [{**BLANKS, "normalized": True}],
            }
        },
        "5 15 6 | 5 15 6 10 | 15 11 14 13 | 5 1 1 1 | 7 13 15 1",
    ),
    "config alone": (
        {
            "tokenizer_config": {
                "additional_special_tokens": ["<new>"],
                "eos_token": "<e1>",
                "extra_special_tokens": {"x": "[unused1]"},
            }
        },
        "5 15 6 | 5 8 7 9 6 10 | 15 11 14 13 | 5 12 | 7 13 15 1",
    ),
    "decoder": (
        {
            **decoder(
                entry(NEW, "<new>", single_word=True),
                entry(E1, "<e1>"),
                entry(16, "[\u03a3a]", **RAW),
                entry(17, "SARS"),
            ),
            "added_tokens": {"cat": 99},
        },
        "5 8 7 9 6 | 5 14 6 10 | 14 11 15 13 | 5 1 1 1 | 7 13 8 7 9 1",
    ),
    "cased": (
        decoder(
            entry(NEW, "<NEW>", normalized=False, rstrip=True),
            entry(12, "[unused1]"),
            entry(5, "the", single_word=True),
            do_lower_case=False,
        ),
        "5 8 7 9 6 | 1 14 6 10 | 8 7 9 11 8 1 9 13 | 5 12 | 7 13 8 7 9 1",
    ),
    "split": (
        decoder(
            entry(NEW, "<new>", special=True),
            entry(E1, "<e1>"),
            split_special_tokens=True,
        ),
        "5 8 7 9 6 | 5 8 7 9 6 10 | 8 7 9 11 15 13 | 5 1 1 1 | 7 13 8 7 9 1",
    ),
    "tokenizer.json": (
        {
            "tokenizer": listed(
                entry(6, "cat", single_word=True),
                entry(NEW, "<new>"),
                entry(E1, "<e1>", **RAW),
            )
        },
        "5 14 6 | 5 14 6 10 | 14 11 15 13 | 5 1 1 1 | 7 13 14 1",
    ),
    "tokenizer.json and more": (
        {
            "tokenizer": listed(entry(NEW, "<new>")),
            "tokenizer_config": {"additional_special_tokens": ["<e1>"]},
        },
        "5 14 6 | 5 14 6 10 | 14 11 15 13 | 5 1 1 1 | 7 13 14 1",
    ),
    "chinese": (
        decoder(entry(14, "\u4eac<e1>"), entry(15, "<new>\u4eac")),
        "5 8 7 9 6 | 5 8 7 9 6 10 | 15 8 1 9 13 | 5 1 1 1 | 7 13 8 7 9 1",
    ),
}


def write(folder, contents, words=WORDS):
    """Writes a vocabulary and files next to it; gives its path."""
    write_lines(folder / "vocab.txt", words)
    for name, content in contents.items():
        write_json(folder / f"{name}.json", content)
    return str(folder / "vocab.txt")


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_transformers(tmp_path, name):
    contents, expected = FOLDERS[name]
    tokenizer = FullTokenizer(write(tmp_path, contents), name != "cased")
    ids = [list(map(int, row.split())) for row in expected.split("|")]
    assert tokenizer.encode_ids(TEXTS) == ids
    assert tokenizer.encode_ids(["[CLS] [MASK]"]) == [[1] * 6]
    for text, tokens in zip(TEXTS, tokenizer.encode(TEXTS)):
        pieces = [text[start:end].strip() for start, end in tokens.offsets]
        assert "".join(pieces) == text.replace(" ", "")
    plain = tmp_path / "plain"
    plain.mkdir()
    other = FullTokenizer(write(plain, {}), name != "cased")
    assert tokenizer.describe() != other.describe()


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize("name", ["map alone", "decoder", "cased", "chinese"])
def test_a_graph_finds_the_same(tmp_path, name):
    tokenizer = FullTokenizer(write(tmp_path, FOLDERS[name][0]))
    graph = GraphTokenizer(tokenizer)
    rng = np.random.default_rng(0)
    parts = "the cat <new> <NEW> <e1> \u4eac \u0391\u03a3 _ e\u0301 [unused1]"
    parts += " [\u03a3a] sars"
    parts = [*parts.split(), " ", "\t", "\ue000", "<", "\x00"]
    texts = ["".join(rng.choice(parts, 8)) for _ in range(300)]
    texts += ["", "<new>" * 3000, *TEXTS]
    of_graph = graph([text.encode() for text in texts])
    for number, tokens in enumerate(tokenizer.encode(texts)):
        mine = of_graph.text.numpy() == number
        assert of_graph.ids.numpy()[mine].tolist() == tokens.ids, texts[number]
        places = zip(of_graph.first.numpy()[mine], of_graph.end.numpy()[mine])
        assert list(places) == tokens.offsets, texts[number]
        pieces = tokenizer.tokenize(texts[number])
        assert tokenizer.convert_tokens_to_ids(pieces) == tokens.ids


@BOTH
def test_a_robertas_ids_are_those_of_transformers(golden_dir, tmp_path, name):
    path = tmp_path / "tokenizer.json"
    copy(golden_dir / "roberta" / name / "tokenizer.json", path)
    before = SubwordTokenizer(str(path))
    size = before.vocab_size
    blank = entry(size, "<e1>", lstrip=True, **RAW)
    alone = entry(size + 1, "ZZ", single_word=True)
    write(tmp_path, decoder(blank, alone))
    tokenizer = SubwordTokenizer(str(path))
    assert tokenizer.describe() != before.describe()
    (tmp_path / "vocab.txt").unlink()
    assert len(peft_words.find_tokens(str(tmp_path), before, 2)) == 2
    if name == "roberta":
        # Google's form has the rule too.
        before = {**read_json(path)["pre_tokenizer"], "add_prefix_space": True}
        write_json(path, {**read_json(path), "pre_tokenizer": before})
        spaced = SubwordTokenizer(str(path))
        described = written_form.tokenizer_files(str(path), spaced)
        assert described["tokenizer_config.json"]["add_prefix_space"] is True

    def pieces(ids):
        return " ".join(tokenizer.names[number] for number in ids)

    texts = ["the <e1>cat", "ZZ the ZZZ ZZ."]
    expected = {
        "roberta": [
            "the <e1> cat",
            "ZZ \u0120the \u0120Z Z Z \u0120 ZZ .",
            "<e1> \u0120cat ZZ \u0120the",
        ],
        "xlm-roberta": [
            "\u2581 t he <e1> \u2581 c at",
            "ZZ \u2581 t he \u2581Z Z Z ZZ \u2581 .",
            "<e1> \u2581 c at ZZ \u2581 t he",
        ],
    }[name]
    first, second = tokenizer.encode(texts)
    assert [pieces(first.ids), pieces(second.ids)] == expected[:2]
    words = tokenizer.encode_words(["<e1>cat", "ZZ", "the"])
    assert pieces(sum(words, [])) == expected[2]
    assert first.offsets[first.ids.index(size)] == (4, 8)
    plain = Pieces.of(tokenizer).is_plain
    assert plain[size + 1] and not plain[size]


@pytest.mark.parametrize(
    "contents, message",
    [
        (
            {"added_tokens": {"<new>": 20}},
            "has the id 20, .* gives it 14; give",
        ),
        (decoder(entry(3, "cat")), "token 'cat' has the id 3, but .* it 6"),
        ({"tokenizer_config": {"sep_token": "</s>"}}, "sep_token '</s>'; exp"),
        (
            {"special_tokens_map": {"mask_token": {"content": "<m>"}}},
            "mask_token '<m>'; expected '[MASK]'",
        ),
        (decoder(entry(14, "\u0301")), "is '' once it is normalized"),
        (
            decoder(entry(14, "<new>"), entry(15, "<NEW>")),
            "'<NEW>' is '<new>' once it is normalized, as another",
        ),
        (decoder(entry(14, "")), "no text of 1 to 1000 letters"),
        (decoder(entry(14, "x" * 1001)), "no text of 1 to 1000 letters"),
        (decoder(entry("x", "y")), "its added tokens are odd: .*'x'"),
        ({"added_tokens": {"y": None}}, "its added tokens are odd"),
        (decoder(entry(14, "y", lstrip="no")), "its added tokens are odd"),
        ({"added_tokens": []}, "its added tokens are odd"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, contents, message):
    refusals.check(
        lambda: FullTokenizer(write(tmp_path, contents)), *message.split(".*")
    )


@pytest.fixture
def berts(tiny_bert, tmp_path):
    """The tiny BERT, and one whose last two words were added as tokens."""
    other = tmp_path / "bert"
    copytree(tiny_bert, other)
    copy(tiny_bert / "config.json", other / "config.json")
    tokens = entry(28, "<e1>", **RAW), entry(29, "Covid", single_word=True)
    write(other, decoder(*tokens), TINY_WORDS[:-2])
    return tiny_bert, other


def test_an_adapter_without_them_is_of_another_vocabulary(berts, tmp_path):
    make_artifact(tmp_path / "a", berts[1], "lora(rank=2)")
    bert = open_bert(berts[1])
    trained_task(bert, tmp_path / "a")
    path = tmp_path / "a" / "adapter_config.json"
    change(path, drop("content_sha256"))
    change(path, drop("tokenizer", "added_tokens"))
    refusals.check(
        lambda: trained_task(bert, tmp_path / "a"), "another vocabulary"
    )


@pytest.mark.parametrize("to", ["google", "hugging_face", "merged"])
def test_another_form_keeps_them(berts, tmp_path, command, to):
    adapter, target = tmp_path / "adapter", tmp_path / "target"
    flags = {"init_checkpoint": berts[1], "output_dir": target}
    if to == "merged":
        make_artifact(adapter, berts[1], "lora(rank=2)")
        command(merge, **flags, adapter=adapter)
    else:
        more = {"activation": "gelu"} if to == "google" else {}
        command(convert, **flags, to=to, **more)
    before, after = (
        FullTokenizer(str(folder / "vocab.txt"))
        for folder in (berts[1], target)
    )
    assert before.describe() == after.describe()
    assert after.encode_ids(["<e1>"]) == [[28]]


def test_a_model_without_rows_for_them_is_refused(berts, classify, tiny_flags):
    write(berts[1], decoder(entry(30, "<e2>")), TINY_WORDS)
    flags = {**tiny_flags, "init_checkpoint": berts[1]}
    refusals.check(
        lambda: classify(**flags),
        "the vocabulary has 31 entries, but the BERT config says 30;",
        "--vocab_file; it has ",
        "'<e2>']",
    )
