"""New words of a task: trained, kept, mixed, exported, and what is refused."""

import json
from unittest import mock

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    load_predictor,
    module_fixture,
    open_bert,
    open_checkpoint,
    read_adapter_config,
    read_lines,
    trained_task,
    write_lines,
    write_table,
)
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from test_text_model import check
from tiny_artifacts import CLASSIFICATION, make_artifact, outputs_of, read_base

from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert.encoder import WORD_EMBEDDINGS
from adapter_bert.checkpoints import adapter_artifact, sources
from adapter_bert.data.added_tokens import NEW, check_new_tokens
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.errors import UserError
from adapter_bert.graph.text_model import TextModel
from adapter_bert.methods.new_words import NEW_WORDS
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.training import experiment

pytestmark = pytest.mark.newer_stack

# A token that is found within words too, as other programs add them.
WITHIN = {
    "content": "ate",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}
# Adapters by name: the method, and the task's own words.
TASKS = {
    "one": ("stack(pfeiffer(size=4), new_words(2))", ["sated", "Catdog"]),
    "other": ("stack(lora(rank=2), new_words(2))", ["dog.", WITHIN]),
    "rows": ("stack(prefix(3, false), new_words(2))", ["slow film", "sating"]),
    "plain": ("pfeiffer(size=4)", []),
}
TEXTS = [
    "the sated catdog sat .",
    "a Catdog dog. SATED sateds",
    "slow film sating, slow  film",
    "the cat",
]


def test_a_new_token_that_ends_in_sigma_is_written(tiny_bert):
    """Whose small form at the end of a word is another one."""
    tokenizer = FullTokenizer(str(tiny_bert / "vocab.txt"), True, ["ΑΣ"])
    tokens = json.loads(tokenizer.to_json(9))["added_tokens"]
    assert "ΑΣ" in [token["content"] for token in tokens]


@module_fixture
def folders(tiny_bert, tmp_path_factory):
    """Adapters with random values, by name."""
    made = {}
    for seed, (name, (text, tokens)) in enumerate(TASKS.items()):
        folder = tmp_path_factory.mktemp("adapters") / name
        described = FullTokenizer(str(tiny_bert / "vocab.txt"), True, tokens)
        make_artifact(
            folder, tiny_bert, text, seed=seed, tokenizer=described.describe()
        )
        made[name] = str(folder)
    return made


@pytest.fixture
def words(tmp_path):
    """A file of two new words."""
    path = tmp_path / "words.txt"
    path.write_text("dogs\nfastslow\n")
    return path


def test_a_new_word_may_have_rules_of_its_own(tiny_bert, tokenizer):
    path = str(tiny_bert / "vocab.txt")
    within = FullTokenizer(path, True, [WITHIN])
    assert tokenizer.vocab_size in within.encode_ids(["dogate cat"])[0]
    assert within.describe()[NEW] == [WITHIN]
    for wrong in ({**WITHIN, "lstrip": 1}, {"content": "ate"}):
        with pytest.raises(UserError, match="token 1 is .* expected 1 to 100"):
            check_new_tokens([wrong], "a file")


def test_new_words_are_whole_words_with_the_next_ids(tiny_bert, tokenizer):
    words = ["Dogs", "a cat"]
    more = FullTokenizer(str(tiny_bert / "vocab.txt"), True, words)
    size, ids = tokenizer.vocab_size, more.vocabulary
    assert more.encode_ids(["the DOGS, a cat", "dogsdogs a  cat"]) == [
        [ids["the"], size, ids[","], size + 1],
        [*tokenizer.encode_ids(["dogsdogs"])[0], ids["a"], ids["cat"]],
    ]
    assert tokenizer.encode_ids(["dogs"]) == [[ids["dog"], ids["##s"]]]
    assert more.describe() == {**tokenizer.describe(), NEW: words}


def test_a_task_is_trained_with_new_words(
    classify, tiny_flags, tiny_bert, tokenizer, tmp_path, words
):
    for name, texts in (("train", ("dogs", "fastslow")), ("dev", ("dogs",))):
        rows = [(f"the {t} {w}", w) for t in texts for w in ("good", "bad")]
        write_table(tmp_path / f"{name}.tsv", rows * 4)
    flags = {
        **tiny_flags,
        "data_dir": tmp_path,
        "tuning_method": "pfeiffer(size=4)",
        "new_tokens": words,
    }
    del flags["adapter_size"]

    def rows_of(folder):
        path = folder / "adapter" / "adapter.safetensors"
        return load_file(path)[NEW_WORDS]

    base, config, _ = read_base(tiny_bert)
    table = base.read(WORD_EMBEDDINGS)
    first = np.stack(
        [
            table[[tokenizer.vocabulary[piece] for piece in pieces]].mean(0)
            for pieces in (("dog", "##s"), ("[UNK]",))
        ]
    )
    still = tmp_path / "still"
    more = {"learning_rate": 1e-12, "num_train_epochs": 1, "output_dir": still}
    classify(**{**flags, **more})
    assert_allclose(rows_of(still), first, atol=1e-6)
    # Now with a rate that moves both, and a score of the trained values.
    flags.update(learning_rate=1e-2, do_eval=True)
    classify(**flags)
    run = flags["output_dir"]
    assert (np.abs(rows_of(run) - first).max(axis=1) > 1e-3).all()
    adapter = run / "adapter"
    described = read_adapter_config(adapter)
    assert described["method"].endswith("new_words(count=2))")
    assert described["tokenizer"][NEW] == ["dogs", "fastslow"]
    result = (run / "eval_results.txt").read_text()
    # The adapter brings its words, so that the file is not needed.
    del flags["new_tokens"]
    again = tmp_path / "again"
    flags.update(adapter=adapter, output_dir=again, do_train=False)
    classify(**flags)
    again = (again / "eval_results.txt").read_text()
    assert scores(again) == scores(result)
    # Another file is not that of the adapter.
    other = tmp_path / "other.txt"
    other.write_text("dogs\n")
    flags["output_dir"] = tmp_path / "no"
    del flags["tuning_method"]
    refusals.check(
        lambda: classify(**flags, new_tokens=other),
        "trained with 2 new tokens, and ",
        "oth",
    )
    # The answers of a server are those of the run.
    predictor = load_predictor(tiny_bert, {"it": adapter})
    answers = predictor("it", ["the dogs good", "the dogs bad"])
    assert answers[0]["scores"] != answers[1]["scores"]


def scores(text):
    """The dev scores of `eval_results.txt`."""
    return [line for line in text.splitlines() if line.startswith("eval_")]


def test_tasks_with_other_words_are_in_one_batch(folders, tiny_bert, tokenizer):
    """Each answers as it does alone, without any sharing."""
    predictor = load_predictor(tiny_bert, folders)
    questions = [(name, text) for text in TEXTS for name in TASKS]
    answers = predictor.ask(questions)
    task = restore_task(CLASSIFICATION, {}, "")
    for (name, text), answer in zip(questions, answers):
        loaded = predictor.task(name)
        assert loaded.can_mix
        ids = [
            tokenizer.classify_id,
            *loaded.tokenizer.encode_ids([text])[0],
            tokenizer.separate_id,
        ]
        values = {k: v.numpy() for k, v in loaded.values.get().items()}
        row = (ids, [0] * len(ids))
        [outputs] = outputs_of(
            tiny_bert, loaded.kind.method, values, task, [row]
        )
        assert_allclose(
            [answer["scores"][label] for label in task.labels],
            tf.nn.softmax(outputs["logits"]),
            atol=1e-5,
        )
    new = tokenizer.vocab_size
    for name, (_, tokens) in TASKS.items():
        ids = sum(predictor.task(name).tokenizer.encode_ids(TEXTS), [])
        held = {i for i in ids if i >= new}
        assert held == set(range(new, new + len(tokens)))


@pytest.mark.gate
def test_an_export_knows_the_words_of_each_task(folders, tiny_bert):
    bert = open_bert(tiny_bert)
    names = "one", "other", "plain"
    tasks = {name: load_task(bert, folders[name], None) for name in names}
    model = TextModel(bert, tasks, batch_size=5)
    predictor = load_predictor(tiny_bert, folders)
    questions = [(name, (text,)) for text in TEXTS for name in names]
    check(model, predictor, questions)


def test_lines_that_are_no_new_words_are_refused(
    classify, tiny_flags, tmp_path, words
):
    flags = {**tiny_flags, "new_tokens": words}
    del flags["adapter_size"]
    for text, message in (
        ("", "expected 1 to 10000 new tokens"),
        ("a\n\nb\n", "token 2 is ''"),
        (" a\n", "token 1 is ' a'"),
        ("x\ny\nx\n", "token 3 is 'x'; expected .* each token once"),
        ("x" * 101, "expected 1 to 100 letters"),
        ("cat\n", "the new token 'cat' is in BERT's vocabulary already"),
        ("Dogs\ndogs\n", "in BERT's letters, as another one"),
        ("\u0301\n", "is '' in BERT's letters"),
    ):
        words.write_text(text)
        with pytest.raises(UserError, match=message):
            classify(**flags)
    words.write_text("dogs\n")
    for method, message in (
        ("new_words(2)", "has 2 new words, but there are 1 new tokens"),
        (
            "per_task(pals(6, 2))",
            "--new_tokens cannot be trained with per_task",
        ),
    ):
        with pytest.raises(UserError, match=message):
            classify(**flags, tuning_method=method)
    del flags["new_tokens"]
    refusals.check(
        lambda: classify(
            **flags, tuning_method="stack(pfeiffer, new_words(1))"
        ),
        "has 1 new words, but there are 0",
    )
    refusals.check(
        lambda: classify(**flags, new_tokens=tmp_path / "none.txt"), "none.txt"
    )
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_new_word_that_no_row_holds_is_told(
    classify, tiny_flags, words, monkeypatch, caplog
):
    words.write_text("nowhere\n")
    stop = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(experiment, "_train", stop)
    with pytest.raises(KeyboardInterrupt):
        classify(**tiny_flags, new_tokens=words)
    assert "no training row holds the new words nowhere" in caplog.text


def test_a_description_with_odd_words_is_refused(folders, tiny_bert, tmp_path):
    config = adapter_artifact.read_config(folders["one"])
    values = load_file(f"{folders['one']}/adapter.safetensors")
    bert = open_bert(tiny_bert)
    for tokens, message in (
        ([1], "token 1 is '1'"),
        ("ab", "expected 1 to 10000 new tokens"),
        (["sated"], "has 1 new tokens, but its method .* 2; copy"),
    ):
        described = {
            **config,
            "tokenizer": {**config["tokenizer"], NEW: tokens},
        }
        place = tmp_path / str(tokens)
        place.mkdir()
        adapter_artifact.write(str(place), described, values)
        with pytest.raises(UserError, match=message):
            trained_task(bert, place)


def test_a_vocabulary_with_room_behind_it_takes_no_words(tiny_bert, tmp_path):
    opened = open_checkpoint(tiny_bert)
    config = sources.read_config(opened)
    short = tmp_path / "vocab.txt"
    lines = read_lines(tiny_bert / "vocab.txt")
    write_lines(short, lines[:-1])
    sources.read_tokenizer(opened, config, str(short))
    refusals.check(
        lambda: sources.read_tokenizer(
            opened, config, str(short), None, ["new"]
        ),
        "1 entries more than the vocabulary",
    )
