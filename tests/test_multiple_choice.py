"""Which of some texts goes with a text: files, batches, runs, answers."""

import json
import subprocess
import sys
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import roberta_folders
import tensorflow as tf
from conftest import ROOT, SENTENCES, own_lines
from task_files import PROPERTY, read, refusal
from test_methods import METHOD_TEXTS
from tiny_artifacts import make_artifact, outputs_of
from tiny_model import TinyModel

from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Choices, Features, make_batch
from adapter_bert.methods.registry import parse
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import kind_of
from adapter_bert.tasks.multiple_choice import ChoiceHead
from adapter_bert.tasks.registry import TASKS

COPA, SWAG = TASKS["copa"], TASKS["swag"]
LACKING = object()
OWN = custom_task(text_a_column="q", choice_columns=("a", "b", "c"))


def write_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def copa_row(number=0, **changes):
    text, _ = SENTENCES[number % len(SENTENCES)]
    # The right one is the other in every second row.
    choices = ["good film", "bad dog"][:: 1 if number % 2 else -1]
    return {
        "premise": text,
        "choice1": choices[0],
        "choice2": choices[1],
        "question": ("cause", "effect")[number // 2 % 2],
        "label": (number + 1) % 2,
        "idx": number,
        **changes,
    }


SWAG_HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3,label"
)


def write_swag(folder):
    lines = [
        SWAG_HEADER,
        "0,v,1,the cat . the dog,the cat .,the dog,gold,sat,ran,is,was,2",
        '1,v,1,x,"a cat, a dog",the,gen,"ran, in",in,on,out,0',
    ]
    (folder / "val.csv").write_text("\n".join(lines) + "\n")


# Reading


def test_swag_is_read_as_published(tmp_path, tokenizer):
    write_swag(tmp_path)
    rows = read(SWAG, tmp_path, "val")
    features = SWAG.featurize(rows, tokenizer, 32)
    assert len(features) == len(rows) == 2 and features.choices == 4
    assert features.labels["label_ids"].tolist() == [2, 0]
    found = [
        features.tokens[first:last].tolist()
        for first, last in zip(features.starts, features.starts[1:])
    ]
    expected = [
        f"the cat . [SEP] the dog {ending}"
        for ending in ("sat", "ran", "is", "was")
    ] + [
        f"a cat , a dog [SEP] the {ending}"
        for ending in ("ran , in", "in", "on", "out")
    ]
    words = tokenizer.vocabulary
    assert found == [
        [words[word] for word in ("[CLS] " + text + " [SEP]").split()]
        for text in expected
    ]
    assert features.segments[: len(found[0])].tolist() == [0] * 5 + [1] * 4


def test_copa_asks_for_causes_and_effects(tmp_path, tokenizer):
    rows = [copa_row(), copa_row(2)]
    write_json(tmp_path / "val.jsonl", rows)
    found = read(COPA, tmp_path, "val")
    features = COPA.featurize(found, tokenizer, 32)
    for row, question in enumerate(
        ("What was the cause of this?", "What happened as a result?")
    ):
        for place, name in enumerate(("choice1", "choice2")):
            text = f"{question} {rows[row][name]}"
            premise, choice = tokenizer.encode_ids([rows[row]["premise"], text])
            first, last = features.starts[2 * row + place :][:2]
            assert features.tokens[first:last].tolist() == [
                tokenizer.classify_id,
                *premise,
                tokenizer.separate_id,
                *choice,
                tokenizer.separate_id,
            ]
    assert features.labels["label_ids"].tolist() == [1, 1]


def write_own(folder, rows, split="train", header="q\ta\tb\tc\tlabel"):
    lines = [header, *("\t".join(row) for row in rows)]
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def test_a_label_is_a_number_or_a_column(tmp_path):
    write_own(tmp_path, [("q", "x", "y", "z", label) for label in ("1", "c")])
    rows = read(OWN, tmp_path, "train")
    assert rows.choices == (["x", "x"], ["y", "y"], ["z", "z"])
    assert OWN.label_features(rows.label)["label_ids"].tolist() == [1, 2]


def test_columns_by_number(tmp_path):
    task = custom_task("1", None, "0", header=False, choice_columns=("3", "2"))
    assert task.columns == ("text", "choice0", "choice1")
    (tmp_path / "train.tsv").write_text("0\tq\tx\ty\nchoice1\tq\tx\ty\n")
    rows = read(task, tmp_path, "train")
    assert rows.choices == (["y", "y"], ["x", "x"])
    assert task.label_features(rows.label)["label_ids"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "row, part",
    [
        (("q", "x", " ", "z", "0"), "the choice 'b' is empty"),
        (("q", "x", "y"), "found 3 tab-separated columns"),
        (("q", "x", "y", "z", "3"), "the label is '3', expected the right"),
        (("q", "x", "y", "z", ""), "the label is ''"),
        (("q", "x", "y", "z", "A"), "its column, 'a' or 'b' or 'c'"),
    ],
)
def test_a_malformed_row_is_refused_with_its_place(tmp_path, row, part):
    write_own(tmp_path, [("q", "x", "y", "z", "0"), row])
    message = refusal(read, OWN, tmp_path, "train")
    assert message.startswith(f"{tmp_path / 'train.tsv'}:3: ")
    assert part in message and "\n" not in message


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"choice2": ""}, "the choice 'choice2' is empty"),
        ({"question": "why"}, "'question' is 'why', expected cause or effect"),
        ({"label": 2}, "the label is '2'"),
        ({"choice1": LACKING}, "no key 'choice1'"),
    ],
)
def test_a_malformed_object_is_refused_with_its_place(tmp_path, changes, part):
    row = {k: v for k, v in copa_row(**changes).items() if v is not LACKING}
    write_json(tmp_path / "train.jsonl", [copa_row(), row])
    message = refusal(read, COPA, tmp_path, "train")
    assert message.startswith(f"{tmp_path / 'train.jsonl'}:2: ")
    assert part in message


@pytest.mark.parametrize(
    "arguments, part",
    [
        ({"choice_columns": ("a",)}, "names 1 columns, expected 2"),
        (
            {"choice_columns": ("a", "b", "a")},
            "names 'a', a column that it or another flag names too",
        ),
        ({"choice_columns": ("text", "b")}, "names 'text', a column that"),
        ({"choice_columns": ("a", "label")}, "names 'label', a column that"),
        (
            {
                "choice_columns": ("1", "01"),
                "header": False,
                "text_a_column": "0",
                "label_column": "3",
            },
            "names '1', a column that",
        ),
        ({"choice_columns": ("a", "1")}, "rename the column"),
        (
            {"choice_columns": ("a", "b"), "regression": True},
            "--regression and --choice_columns exclude each other",
        ),
        ({"choice_columns": ("a", "b"), "header": False}, "is no number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, part):
    assert part in refusal(lambda: custom_task(**arguments))


def test_a_part_of_the_training_file_is_held_out(tmp_path):
    write_own(tmp_path, [(f"q{i}", "x", f"y{i}", "z", "0") for i in range(20)])
    task = custom_task("q", choice_columns=("a", "b", "c"), dev_share=0.25)
    _, rows = task.read(str(tmp_path), ["train", "dev"])
    assert [len(rows[split]) for split in ("train", "dev")] == [15, 5]
    for part in rows.values():
        numbers = [text[1:] for text in part.text_a]
        assert [text[1:] for text in part.choices[1]] == numbers


# Results

LOGITS = np.array([[1], [2], [0], [3], [0], [1]], np.float32)


def test_scores_and_files_are_of_the_chosen(tmp_path):
    write_own(tmp_path, [("q", "x", "y", "z", "1"), ("q", "x", "y", "z", "c")])
    rows = OWN.keep(read(OWN, tmp_path, "train"))
    features = type("F", (), {"labels": OWN.label_features(["1", "c"])})
    found = OWN.decode(rows, features, {"logits": LOGITS})
    scores = OWN.evaluate(rows, features, found)
    assert list(scores) == ["accuracy", "loss"] and scores["accuracy"] == 0.5
    results, path = OWN.write_predictions(str(tmp_path), rows, found)
    assert np.loadtxt(results).shape == (2, 3)
    described = json.loads((tmp_path / "test_results.json").read_text())
    assert described == {"columns": ["a", "b", "c"]}
    lines = [line.split("\t") for line in open(path).read().splitlines()]
    assert lines[0] == ["id", "label", "probability"]
    assert [line[:2] for line in lines[1:]] == [["0", "1"], ["1", "0"]]
    (first, _) = OWN.answer(rows, found)
    assert list(first) == ["choice", "probability", "scores"]
    assert first["choice"] == 1
    assert (
        first["probability"]
        == first["scores"]["b"]
        == max(first["scores"].values())
    )


@pytest.mark.parametrize("task", [OWN, COPA, SWAG], ids=lambda t: t.name)
def test_a_trained_task_is_restored(task):
    description = json.loads(json.dumps({"name": task.name, **task.describe()}))
    settings = json.loads(json.dumps(task.settings))
    found = restore_task(description, settings, "head")
    assert found.columns == task.columns and found.head == task.head
    assert type(found) is type(task) and found.reading == task.reading
    assert kind_of(description) == "multiple choice"


@pytest.mark.parametrize("choices", [-1, True, 10**9, "2"])
def test_malformed_numbers_of_choices_are_refused(choices):
    description = {"name": "custom", "pairs": False, "choices": choices}
    assert "task.choices is" in refusal(restore_task, description, {}, "head")


def test_other_heads_are_not_mistaken():
    description = {"name": "custom", "labels": ["a", "b"], "pairs": False}
    assert "which has no choices" in refusal(OWN.restore, description, "head")
    description = {"name": "copa", **COPA.describe()}
    assert "without labels" in (
        refusal(custom_task().restore, description, "head")
    )


# Long texts

NUMBERS = types.SimpleNamespace(
    classify_id=-1,
    separate_id=-2,
    between=[-2],
    second_segment=1,
    keeps_end=False,
    encode_ids=lambda texts: [list(map(int, text.split())) for text in texts],
)
QUESTIONS = custom_task(
    text_a_column="q", text_b_column="b", choice_columns=("c", "d", "e")
)


def sequences_of(task, row, length):
    """Each choice's tokens between the special ones, and how many are cut."""
    features = task.featurize(task.make_rows([row]), NUMBERS, length)
    bounds = zip(features.starts, features.starts[1:])
    found = [features.tokens[a:b].tolist() for a, b in bounds]
    assert all(len(x) <= length and x[0] == -1 and x[-1] == -2 for x in found)
    return [(x[1 : x.index(-2)], x[x.index(-2) + 1 : -1]) for x in found], (
        features.cut_rows
    )


LENGTHS = st.integers(0, 12)


@hypothesis.settings(derandomize=True, deadline=None, max_examples=300)
@hypothesis.given(
    LENGTHS,
    st.none() | LENGTHS,
    st.tuples(*[st.integers(1, 12)] * 3),
    st.integers(5, 40),
)
@hypothesis.example(4, 21, (1, 2, 1), 16)
@hypothesis.example(20, None, (3, 3, 9), 12)
@hypothesis.example(12, 12, (12, 1, 1), 15)
def test_texts_are_cut_alike_and_choices_last(len_a, len_b, lengths, limit):
    task = QUESTIONS if len_b is not None else OWN
    texts = [range(100, 100 + len_a)]
    texts += [] if len_b is None else [range(200, 200 + len_b)]
    choices = [
        list(range(n * 100, n * 100 + x)) for n, x in enumerate(lengths, 3)
    ]
    row = tuple(" ".join(map(str, text)) for text in (*texts, *choices))
    found, cut_rows = sequences_of(task, row, limit)
    a, b = (list(text) for text in (*texts, [])[:2])
    room, longest = limit - 3, max(lengths)
    assert cut_rows == (len(a) + len(b) + longest > room)
    [(first_a, first_b), *_] = found
    kept_b = [x for x in first_b if x < 300]
    for choice, (own_a, own_b) in zip(choices, found):
        assert own_a == first_a == a[: len(first_a)]
        assert own_b == kept_b + choice[:room] and kept_b == b[: len(kept_b)]
    if not cut_rows:
        assert (first_a, kept_b) == (a, b)
    else:
        # Nothing is cut for no reason; the longer text is cut first.
        assert len(first_a) + len(kept_b) == max(0, room - longest)
        if kept_b != b and first_a != a:
            assert abs(len(first_a) - len(kept_b)) <= 1


@roberta_folders.BOTH
def test_a_byte_level_question_is_told_from_its_choices(golden_dir, name):
    """Choices follow after a space, with which their tokens begin."""
    read = roberta_folders.read_recorded(golden_dir, name).tokenizer
    for question in ("Who sat down?", "", "it's ", "\u00e9a\u4e00"):
        row = "some text", question * 9, "a word", "Others!", "the third"
        features = QUESTIONS.featurize(QUESTIONS.make_rows([row]), read, 40)
        for number, tokens in enumerate(read.encode_words(row[2:])):
            end = features.starts[number + 1]
            assert features.tokens[end - 1 - len(tokens) : end].tolist() == [
                *tokens,
                read.separate_id,
            ]


# Serving

CHOICE_ROWS = [
    ("the cat sat", "cause", "good", "not bad , the dog ran fast"),
    ("a dog ran", "effect", "the film was slow !", "in"),
    ("is the cat in ?", "cause", "mat", "out"),
]
DESCRIPTION = {"name": "copa", **COPA.describe()}


@pytest.fixture
def folders(tiny_bert, tmp_path):
    found = {}
    for seed, (name, method) in enumerate(
        (("one", "houlsby(size=3)"), ("two", "lora(rank=2)"))
    ):
        folder = tmp_path / name
        made = make_artifact(
            folder, tiny_bert, method, COPA, DESCRIPTION, seed=seed
        )
        found[name] = str(folder), made
    return found


@pytest.mark.gate
@pytest.mark.newer_stack
def test_a_predictor_chooses_alone_and_in_mixed_batches(
    folders, tiny_bert, tokenizer
):
    predictor = Predictor.load(
        str(tiny_bert), {n: f for n, (f, _) in folders.items()}, batch_size=3
    )
    alone = {name: predictor(name, list(CHOICE_ROWS)) for name in folders}
    both = predictor(list(folders), list(CHOICE_ROWS))
    for name, (_, (method, values)) in folders.items():
        features = COPA.featurize(COPA.make_rows(CHOICE_ROWS), tokenizer, 24)
        sequences = [
            (features.tokens[a:b].tolist(), features.segments[a:b].tolist())
            for a, b in zip(features.starts, features.starts[1:])
        ]
        logits = outputs_of(tiny_bert, method, values, COPA, sequences)
        logits = np.concatenate([row["logits"] for row in logits]).reshape(3, 2)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for answers in (alone[name], [answer[name] for answer in both]):
            found = [list(answer["scores"].values()) for answer in answers]
            np.testing.assert_allclose(found, shares, atol=1e-5)
            assert [answer["choice"] for answer in answers] == (
                shares.argmax(axis=1).tolist()
            )


def test_what_cannot_be_chosen_from_is_refused(folders, tiny_bert):
    predictor = Predictor.load(str(tiny_bert), {"one": folders["one"][0]})
    for row, part in (
        (("a", "cause", " ", "b"), "the choice 'choice1' is empty"),
        (("a", "why", "a", "b"), "expected cause or effect"),
        (("a", "cause", "a"), "found 3 texts"),
    ):
        message = refusal(predictor, "one", [CHOICE_ROWS[0], row])
        assert message.startswith("row 2: ") and part in message


def write_copa(folder):
    rows = [copa_row(number) for number in range(8)]
    write_json(folder / "train.jsonl", rows * 5)
    write_json(folder / "val.jsonl", rows)
    for row in rows:
        del row["label"]
    write_json(folder / "test.jsonl", rows)


@pytest.mark.gate
@pytest.mark.older_stack
def test_training_learns_to_choose_and_an_adapter_answers_alike(
    classify, tiny_flags, tiny_bert, tmp_path
):
    write_copa(tmp_path)
    tiny_flags.update(
        task_name="COPA",
        data_dir=tmp_path,
        cpu_lanes=3,
        gradient_accumulation_steps=2,
        num_train_epochs=20,
        tuning_method="full",
        do_eval=True,
        do_predict=True,
    )
    del tiny_flags["adapter_size"]
    classify(**tiny_flags)
    out = tiny_flags["output_dir"]
    results = json.loads((out / "eval_results.json").read_text())
    assert results["eval_accuracy"] == 1.0
    lines = (out / "test_predictions.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    predicted = [line.split("\t")[1] for line in lines[1:]]
    assert predicted == ["1", "0"] * 4
    predictor = Predictor.load(str(tiny_bert), [str(out / "adapter")])
    rows = map(json.loads, (tmp_path / "test.jsonl").read_text().splitlines())
    found = predictor("copa", [tuple(map(r.get, COPA.columns)) for r in rows])
    assert [str(answer["choice"]) for answer in found] == predicted
    shares = np.loadtxt(out / "test_results.tsv")
    for answer, row in zip(found, shares):
        assert list(answer["scores"].values()) == pytest.approx(row, abs=1e-5)


@pytest.mark.newer_stack
def test_an_empty_choice_from_an_open_pipe_ends_the_program_in_one_line(
    folders, tiny_bert
):
    row = {"premise": "a", "question": "cause", "choice1": "", "choice2": "b"}
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "adapter_bert",
            "predict",
            f"--init_checkpoint={tiny_bert}",
            f"--adapter={folders['one'][0]}",
        ],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(json.dumps(row) + "\n")
        process.stdin.flush()
        # More may come, so that the program is reading when it ends.
        assert process.wait(60) == 1
        assert not process.stdout.read()
        last = own_lines(process.stderr.read())[-1]
    assert last == "error: stdin:1: the choice 'choice1' is empty"


@st.composite
def choices_of(draw):
    count = draw(st.integers(1, 5))
    choices = draw(st.integers(2, 4))
    lengths = draw(
        st.lists(
            st.integers(1, 6),
            min_size=count * choices,
            max_size=count * choices,
        )
    )
    sequences = [
        (list(range(10 * i, 10 * i + n)), [i % 2] * n)
        for i, n in enumerate(lengths)
    ]
    labels = {"label_ids": np.arange(count, dtype=np.int32)}
    pairs = Features.from_rows(sequences, labels)
    return Choices(**vars(pairs), choices=choices), sequences


@pytest.mark.older_stack
@PROPERTY
@hypothesis.given(choices_of(), st.data())
def test_a_rows_choices_stay_together_in_its_batch(made, data):
    features, sequences = made
    assert len(features) * features.choices == len(sequences)
    longest = [
        max(
            len(tokens)
            for tokens, _ in sequences[row * features.choices :][
                : features.choices
            ]
        )
        for row in range(len(features))
    ]
    assert features.lengths.tolist() == longest
    rows = np.array(
        data.draw(
            st.lists(st.integers(0, len(features) - 1), min_size=1, max_size=6)
        )
    )
    batch = make_batch(features, rows, None)
    shape = (len(rows), features.choices, max(longest[row] for row in rows))
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert batch[name].shape == shape
    assert batch["label_ids"].tolist() == rows.tolist()
    for place, row in enumerate(rows):
        for choice in range(features.choices):
            tokens, segments = sequences[row * features.choices + choice]
            mask = batch["input_mask"][place, choice].astype(bool)
            assert mask.tolist() == [True] * len(tokens) + [False] * (
                shape[2] - len(tokens)
            )
            for name, values in (
                ("input_ids", tokens),
                ("segment_ids", segments),
            ):
                assert batch[name][place, choice][mask].tolist() == values
                assert not batch[name][place, choice][~mask].any()
    # In predictions every choice is a row.
    alone = features.unlabelled()
    assert alone.lengths.tolist() == [len(tokens) for tokens, _ in sequences]


@pytest.mark.older_stack
def test_a_dataset_has_the_shape_of_its_batches():
    features = Choices(
        **vars(
            Features.from_rows(
                [([1, 2], [0, 0])] * 6, {"label_ids": np.zeros(2, np.int32)}
            )
        ),
        choices=3,
    )
    batch = make_batch(features, np.array([0, 1]), 5)
    dataset = input_pipeline.to_dataset(lambda: iter([batch]), features, 5, 2)
    (found,) = dataset
    assert found["input_ids"].shape == (2, 3, 5)


@pytest.mark.older_stack
def test_the_loss_is_the_cross_entropy_over_a_rows_choices(tiny_config):
    head = ChoiceHead(
        tiny_config, lambda name, shape, _: tf.zeros(shape), TASKS["copa"].head
    )
    logits = np.array([[1.0, 3.0, 0.0], [2.0, 2.0, 2.0]], np.float32)
    labels = np.array([1, 0], np.int32)
    found = head.loss(
        {"logits": tf.constant(logits.reshape(6, 1))}, {"label_ids": labels}
    )
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        found, -np.log(shares[[0, 1], labels]), rtol=1e-6
    )


@pytest.mark.older_stack
@pytest.mark.parametrize("text", METHOD_TEXTS)
def test_every_method_computes_choices_as_rows(tiny_config, text):
    tiny = TinyModel(tiny_config, parse(text))
    expected = tiny.logits()
    rows = dict(tiny.features)
    for name in ("input_ids", "input_mask", "segment_ids"):
        tiny.features[name] = tf.reshape(rows[name], [2, 2, 9])
    np.testing.assert_allclose(tiny.logits(), expected, atol=1e-6)
