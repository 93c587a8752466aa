"""Masks: what is masked, by what, and on what alone that depends."""

import hypothesis.strategies as st
import numpy as np
import pytest
import refusals
from conftest import TINY_WORDS, module_fixture, read_json, write_json
from hypothesis import given
from test_tokenization import write_vocabulary

from adapter_bert.data import input_pipeline
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.tasks import masked_lm
from adapter_bert.tasks.masked_lm import NO_TOKEN, MaskedText, Masking, Pieces

pytestmark = pytest.mark.older_stack

SPECIAL = range(5)
WORDS = range(5, len(TINY_WORDS))
MASK_ID = TINY_WORDS.index("[MASK]")


@module_fixture
def pieces(tokenizer):
    return Pieces.of(tokenizer)


def make_text(rows, pieces, **how):
    """Masked text of rows of tokens, with `[CLS]` and `[SEP]` around them."""
    features = Features.from_rows(
        (([2, *row, 3], [0] * (len(row) + 2)) for row in rows), {}
    )
    return MaskedText(**vars(features), masking=Masking(**how), pieces=pieces)


# Rows that hold unknown words too.
ROWS = st.lists(
    st.lists(st.integers(1, len(TINY_WORDS) - 1), min_size=1, max_size=40),
    min_size=1,
    max_size=6,
)
HOW = st.fixed_dictionaries(
    {
        "probability": st.sampled_from([0.01, 0.15, 0.5, 1.0]),
        "whole_words": st.booleans(),
        "seed": st.integers(0, 2**31 - 1),
    }
)
STEPS = st.one_of(st.none(), st.integers(0, 2**31 - 1))


def words_of(row):
    """Places of each word's tokens in a row, as Google's program finds them.

    There a `##` piece belongs to the word before it; here one that follows no
    piece of text is a word of its own.
    """
    words = []
    for place, number in enumerate(row):
        if number in SPECIAL:
            continue
        follows = place > 0 and row[place - 1] not in SPECIAL
        if follows and TINY_WORDS[number].startswith("##"):
            words[-1].append(place)
        else:
            words.append([place])
    return words


def slowly_chosen(row, drawn, probability, whole_words):
    """The places that are to be masked of a row, word by word."""
    plain = [place for place, number in enumerate(row) if number not in SPECIAL]
    words = words_of(row) if whole_words else [[place] for place in plain]
    wanted = min(max(1, round(probability * len(plain))), len(plain))
    for word in [word for word in words if len(word) > wanted]:
        words.remove(word)
        words += [[place] for place in word]
    chosen = []
    for word in sorted(words, key=lambda word: drawn[word[0]]):
        if len(word) <= wanted - len(chosen):
            chosen += word
    return sorted(chosen)


@given(ROWS, HOW, STEPS, st.sampled_from([None, 42, 50]))
def test_tokens_are_chosen_as_one_would_by_hand(
    pieces, rows, how, step, length
):
    text = make_text(rows, pieces, **how)
    numbers = np.arange(len(rows))
    batch = input_pipeline.make_batch(text, numbers, length, step)
    size = max(map(len, rows)) + 2
    drawn = masked_lm.draw(how["seed"], masked_lm.CHOICE, step, numbers, size)
    for number, row in enumerate(rows):
        whole = [2, *row, 3]
        shares = how["probability"], how["whole_words"]
        expected = slowly_chosen(whole, drawn[number], *shares)
        ids = batch["masked_ids"][number]
        places = batch["masked_positions"][number]
        assert ids[: len(expected)].tolist() == [whole[p] for p in expected]
        assert places[: len(expected)].tolist() == expected
        assert (ids[len(expected) :] == NO_TOKEN).all()
        assert not places[len(expected) :].any()
        # Special tokens and padding are never masked, and what is not masked
        # stays.
        kept = np.ones(batch["input_ids"].shape[1], bool)
        kept[expected] = False
        padded = np.zeros(len(kept), int)
        padded[: len(whole)] = whole
        shown = batch["input_ids"][number]
        assert shown[kept].tolist() == padded[kept].tolist()
        assert not set(shown[expected].tolist()) - {MASK_ID, *WORDS}
    count = (batch["masked_ids"] != NO_TOKEN).sum()
    weights = batch["masked_weights"]
    assert weights.dtype == np.float32 and weights.shape == (len(rows),)
    assert set(weights) == {np.float32(len(rows) / max(count, 1))}
    assert batch["masked_ids"].dtype == batch["input_ids"].dtype == np.int32


@given(ROWS, HOW, STEPS, st.data())
def test_a_rows_masks_depend_on_seed_step_and_row_alone(
    pieces, rows, how, step, data
):
    """Not on the rows next to it, their order, or what it is padded to."""
    text = make_text(rows, pieces, **how)
    whole = input_pipeline.make_batch(text, np.arange(len(rows)), 50, step)
    some = np.array(
        data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1))
    )
    part = input_pipeline.make_batch(text, some, None, step)
    width = part["masked_ids"].shape[1]
    length = part["input_ids"].shape[1]
    assert width == text.masking.most(length)
    for name, size in (
        ("input_ids", length),
        ("masked_positions", width),
        ("masked_ids", width),
    ):
        np.testing.assert_array_equal(part[name], whole[name][some, :size])


def test_every_number_is_a_hash_of_all_that_it_depends_on():
    def mix(value):
        """SplitMix64's next number, in whole numbers of any size."""
        mask = 2**64 - 1
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    # The generator's published first number of the seed 0.
    assert mix(0) == 0xE220A8397B1DCDAF
    for seed, purpose, step in ((0, 0, None), (5, 2, 0), (2**31 - 1, 1, 10**6)):
        rows = np.array([0, 3, 2**40])
        drawn = masked_lm.draw(seed, purpose, step, rows, 4)
        assert drawn.dtype == np.uint64 and drawn.shape == (3, 4)
        for i, row in enumerate(rows.tolist()):
            for place in range(4):
                value = 0
                parts = (seed, purpose, 0 if step is None else step + 1)
                for part in (*parts, row, place):
                    value = mix(value ^ part)
                assert int(drawn[i, place]) == value


def test_eight_in_ten_become_mask_one_any_word_one_stays(pieces):
    """Of 60,000 tokens, so that a share is known to half a percent."""
    rows = np.random.default_rng(0).integers(5, len(TINY_WORDS), (400, 1000))
    text = make_text(rows.tolist(), pieces)
    batch = input_pipeline.make_batch(text, np.arange(400), None, 7)
    ids, places = batch["masked_ids"], batch["masked_positions"]
    is_used = ids != NO_TOKEN
    # 150 of each row's 1,000, everywhere in it.
    assert (is_used.sum(axis=1) == 150).all()
    hits = np.bincount(places[is_used], minlength=1002)[1:-1]
    assert abs(hits[:500].mean() - 60) < 2 and hits.min() > 20
    now = np.take_along_axis(batch["input_ids"], places, axis=1)[is_used]
    right = ids[is_used]
    masked = (now == MASK_ID).mean()
    same = (now == right).mean()
    assert abs(masked - 0.8) < 0.005
    # One of 25 random words is the right one by chance.
    assert abs(same - 0.1 - 0.1 / len(WORDS)) < 0.005
    random = np.bincount(now[(now != MASK_ID) & (now != right)])[5:]
    assert len(random) == len(WORDS)
    assert random.min() > 0.75 * random.mean()
    assert random.max() < 1.25 * random.mean()


def test_prediction_reads_the_masks_and_fingerprints_tell_them(pieces):
    rows = [list(WORDS)]
    text = make_text(rows, pieces)
    assert text.unlabelled() is text
    plain = Features(text.tokens, text.segments, text.starts, {})
    others = [
        plain,
        make_text(rows, pieces, probability=0.2),
        make_text(rows, pieces, whole_words=True),
        make_text([rows[0][::-1]], pieces),
    ]
    prints = {other.fingerprint() for other in others}
    assert len(prints) == 4 and text.fingerprint() not in prints
    # Runs of several seeds are on the same data.
    assert text.fingerprint() == make_text(rows, pieces, seed=9).fingerprint()


def test_free_entries_of_a_vocabulary_are_no_text(tmp_path):
    words = ["[PAD]", "[unused0]", "[unused17]", *TINY_WORDS[1:], "unused1"]
    pieces = Pieces.of(FullTokenizer(write_vocabulary(tmp_path, words)))
    assert pieces.mask_id == words.index("[MASK]")
    assert [words[n] for n in pieces.plain] == [*TINY_WORDS[5:], "unused1"]
    assert pieces.is_plain.sum() == len(pieces.plain)
    continuing = [words[n] for n in np.flatnonzero(pieces.continues)]
    assert continuing == ["##s", "##ed", "##ing"]
    words.remove("[MASK]")
    tokenizer = FullTokenizer(write_vocabulary(tmp_path, words))
    refusals.check(lambda: Pieces.of(tokenizer), "lacks [MASK]")


# Texts in which no space tells where words are, and one that has one long one.
UNSPACED = (
    "\u3042\u3057\u305f\u306f\u3053\u3046\u3048\u3093\u3067\u3042\u305d\u3073\u307e\u3059",
    "\u30c6\u30ec\u30d3\u3067\u3059\u3001\u3000\u65e5\u672c2024\u5e74\u3002\u30d3\u30eb",
    "\u0e1e\u0e23\u0e38\u0e48\u0e07\u0e19\u0e35\u0e49\u0e44\u0e1b\u0e40\u0e17\u0e35\u0e48\u0e22\u0e27\u0e01\u0e31\u0e19",
    "\u12a0\u1298\u1295\u1273\u12cd\u12ad\u1275\u1208\u120d\u1201",
    "ab " + "abcdefghij" * 8,
)


@pytest.mark.parametrize("text", UNSPACED, ids=ascii)
@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bytes"])
def test_every_token_is_masked_about_equally_often(
    tmp_path, golden_dir, text, kind
):
    tokenizer = letters_tokenizer(tmp_path, golden_dir, kind, text)
    [ids] = tokenizer.encode_ids([text])
    pieces = Pieces.of(tokenizer)
    rows = input_pipeline.Features.from_rows([(ids, [0] * len(ids))], {})
    how = Masking(whole_words=True)
    masked = MaskedText(**vars(rows), masking=how, pieces=pieces)
    hits = np.zeros(len(ids))
    for step in range(400):
        batch = input_pipeline.make_batch(masked, np.arange(1), None, step)
        is_masked = batch["masked_ids"][0] != NO_TOKEN
        assert is_masked.sum() == max(1, round(0.15 * len(ids)))
        hits[batch["masked_positions"][0][is_masked]] += 1
    # Whole words of several tokens fit less often than others.
    share = is_masked.sum() / len(ids)
    assert hits.min() > 130 * share and hits.max() < 900 * share


def letters_tokenizer(folder, golden_dir, kind, text):
    """A tokenizer that knows each letter of a text alone."""
    letters = sorted(set(text) - {" ", "\u3000"})
    if kind == "wordpiece":
        words = [*TINY_WORDS[:5], *letters, *(f"##{c}" for c in letters)]
        path = write_vocabulary(folder, words)
        return FullTokenizer(path, do_lower_case=False)
    name = {"unigram": "xlm-roberta", "bytes": "roberta"}[kind]
    path = golden_dir / "roberta" / name / "tokenizer.json"
    described = read_json(path)
    if kind == "unigram":
        described["model"]["vocab"] += [[letter, -9.0] for letter in letters]
    write_json(folder / "tokenizer.json", described)
    return SubwordTokenizer(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "text, words",
    [
        ("\u65e5\u672c\u3001\u3042", "\u65e5|\u672c|\u3001|\u3042"),
        # As BERT sets Chinese characters apart, what is behind them too.
        ("\u65e5ab2\u65e5,", "\u65e5|ab2|\u65e5|,"),
        ("\u0e01\u0e48\u0e01a", "\u0e01\u0e48|\u0e01|a"),
        ("ab, \ud55c\uad6d xab", "ab,|\ud55c\uad6d|xab"),
    ],
    ids=ascii,
)
def test_where_words_begin(tmp_path, golden_dir, text, words):
    tokenizer = letters_tokenizer(tmp_path, golden_dir, "unigram", text)
    [tokens] = tokenizer.encode([text])
    pieces = Pieces.of(tokenizer)
    ids = np.array(tokens.ids)
    begins = pieces.begin_words(ids, pieces.is_plain[ids])
    starts = [s for (s, _), first in zip(tokens.offsets, begins) if first]
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], None])]
    assert "|".join(word.strip() for word in parts if word.strip()) == words
