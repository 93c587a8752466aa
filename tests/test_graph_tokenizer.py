"""Tokens within a graph: those of `tokenization.py`, whatever the text is."""

import gzip
import json
import sys
import unicodedata

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from conftest import module_fixture
from test_tokenization import CASES, TEXTS, WORDS, write_vocabulary

from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.data.tokenizer_config import USUAL, Rules
from adapter_bert.graph.graph_tokenizer import GraphTokenizer

pytestmark = pytest.mark.older_stack

RULES = pytest.mark.parametrize(
    "case", ["uncased", "cased", "accents", "no accents", "chinese"]
)
PROPERTY = hypothesis.settings(max_examples=150)


class Both:
    """A tokenizer, and the same in a graph."""

    def __init__(self, path, do_lower_case, rules=USUAL):
        self.tokenizer = FullTokenizer(path, do_lower_case, rules=rules)
        self.graph = GraphTokenizer(self.tokenizer)
        self.compute = tf.function(
            self.graph,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def of_graph(self, texts):
        """(ids, offsets) of each text."""
        tokens = self.compute(
            tf.constant([t.encode() for t in texts], tf.string)
        )
        text, ids, first, end = (x.numpy() for x in tokens)
        assert (np.diff(text) >= 0).all()
        bounds = np.searchsorted(text, np.arange(len(texts) + 1))
        pairs = np.stack([first, end], axis=1)
        return [
            (ids[a:b].tolist(), list(map(tuple, pairs[a:b].tolist())))
            for a, b in zip(bounds, bounds[1:])
        ]

    def check(self, texts):
        expected = self.tokenizer.encode(texts)
        for text, tokens, one in zip(texts, self.of_graph(texts), expected):
            assert tokens[0] == one.ids, ascii(text)
            assert tokens[1] == one.offsets, ascii(text)


@module_fixture
def small(tmp_path_factory):
    words = [*WORDS, "\u03c2", "##\u03c3", "##\u03c2", "\u03b1", "##\u03b1"]
    path = write_vocabulary(tmp_path_factory.mktemp("vocabulary"), words)
    return {
        "uncased": Both(path, True),
        "cased": Both(path, False),
        "accents": Both(path, True, Rules(strip_accents=False)),
        "no accents": Both(path, False, Rules(strip_accents=True)),
        "chinese": Both(path, True, Rules(tokenize_chinese_chars=False)),
    }


@module_fixture
def pretrained(pretrained_dir):
    path = str(pretrained_dir / "vocab.txt")
    return {"uncased": Both(path, True), "cased": Both(path, False)}


@pytest.mark.gate
@RULES
@PROPERTY
@hypothesis.given(TEXTS)
def test_any_text(small, case, text):
    if any(unicodedata.category(c) == "Cs" for c in text):
        # It cannot be written as UTF-8.
        return
    small[case].check([text])


@RULES
@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "a" * 200,
        "a" * 201,
        "The cats , sat!cat\u4eac\u4eaca",
        "\u0391\u03a3",
        "\u0391\u03a3.",
        "\u0391\u03a3\u0391",
        "\u03a3",
        " \u03a3 \u0391",
        "\u0391\u03a3\u0301\u0391",
        "\u0391\u03a3\x00\u0391",
        "\u0391\u03a3\u00ad\u0391 \u00ad\u03a3",
        "\u0391 \u03a3\u03a3\u03a3",
        "e\u0301e \u00e9\u0301",
        "\ue000 \ufffd a\x00b",
        "aa\u0301a\u0301\u0323 \u0301a\u200b\u0301 a\ufffd",
        "\u0301\u0301 \uac01\u0301",
    ],
)
def test_rare_texts(small, case, text):
    small[case].check(["a cat", text, "", text])


def test_no_texts_and_long_ones(small):
    assert small["uncased"].of_graph([]) == []
    small["uncased"].check(["the cats sat " * 8000, "a" * 50_000])


@pytest.mark.gate
@pytest.mark.pretrained
@CASES
def test_recorded_texts(pretrained, golden_dir, case):
    with gzip.open(golden_dir / "tokenization.json.gz", "rt") as file:
        recorded = json.load(file)
    texts = [record["text"] for record in recorded]
    # The others cannot be written as UTF-8.
    texts = [x for x in texts if x.encode("utf-8", "ignore").decode() == x]
    assert len(texts) > 100
    tokens = pretrained[case].of_graph(texts)
    by_text = {record["text"]: record for record in recorded}
    for text, (ids, _) in zip(texts, tokens):
        assert ids == by_text[text][f"{case}_ids"], ascii(text)


@pytest.mark.gate
@pytest.mark.pretrained
@CASES
def test_every_character(pretrained, case):
    codes = [
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs")
    ]
    # Private ones are all alike.
    codes = [c for c in codes if c < 0xE100 or 0xF900 <= c < 0xF0000]
    texts = [f"a{chr(code)}b {chr(code)}" for code in codes]
    for first in range(0, len(texts), 20_000):
        pretrained[case].check(texts[first : first + 20_000])
