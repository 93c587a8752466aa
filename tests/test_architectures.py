"""Models like BERT against transformers, and what a run of them does."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from test_method_contract import check_alike
from test_methods import METHOD_TEXTS
from test_roberta import reader
from tiny_artifacts import read_base

from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import foreign_base, sources, written_form
from adapter_bert.data.tables import Layout
from adapter_bert.data.tokenization import make_row
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving.predictor import Predictor
from adapter_bert.tasks import task_model
from adapter_bert.tasks.masked_lm import MaskedLMHead
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.text_classification import TextClassification

NAMES = ("distilbert",)
ALL = pytest.mark.parametrize("name", NAMES)
NEWER = pytest.mark.newer_stack
TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("bad", "good"))


@pytest.fixture
def folder_of(golden_dir, tmp_path):
    """Gives a copy of a model's folder, with the files that are published."""

    def copy(name):
        ignored = shutil.ignore_patterns("expected.*")
        place = golden_dir / "architectures" / name
        return shutil.copytree(place, tmp_path / name, ignore=ignored)

    return copy


@pytest.fixture
def recorded(golden_dir):
    """Gives what was recorded of a model: arrays, and tokens."""

    def read(name):
        place = golden_dir / "architectures" / name
        with np.load(place / "expected.npz") as values:
            return dict(values), json.loads(
                (place / "expected.json").read_text()
            )

    return read


def features_of(values):
    ids = tf.constant(values["input_ids"])
    return {
        "input_ids": ids,
        "segment_ids": tf.constant(
            values.get("token_type_ids", values["input_ids"] * 0)
        ),
        "input_mask": tf.constant(values["attention_mask"]),
    }


def test_every_architecture_is_recorded():
    known = {*NAMES, "bert", "roberta", "xlm-roberta"}
    assert known == ARCHITECTURES.keys()


@NEWER
@ALL
def test_golden_hidden_states_and_logits(folder_of, recorded, name):
    """Of the model, of its head of texts, and of its head of masked words."""
    weights, config, _ = read_base(folder_of(name))
    values, _ = recorded(name)
    create = reader(weights)
    features = features_of(values)
    context = Context(features["input_mask"])
    model = TaskModel(config, parse("head"), TASK.build_head, create)
    hidden = model.bert(features["input_ids"], features["segment_ids"], context)
    real = values["attention_mask"] > 0
    for found in ("embedding_output", "sequence_output"):
        computed = getattr(hidden, found).numpy()[real]
        np.testing.assert_allclose(computed, values[found][real], atol=1e-5)
    logits = model(features, context)["logits"]
    np.testing.assert_allclose(logits, values["logits"], atol=1e-5)
    head = MaskedLMHead(config, create)
    places = np.tile(values["places"], (len(real), 1))
    found = head(
        model.bert, hidden.sequence_output, context, places, places * 0
    )
    np.testing.assert_allclose(
        found["logits"], values["logits_of_words"], atol=1e-5
    )


@NEWER
@ALL
def test_golden_ids(folder_of, recorded, name):
    opened = sources.open_init_checkpoint(str(folder_of(name)))
    tokenizer = sources.read_tokenizer(opened, sources.read_config(opened))
    _, tokens = recorded(name)
    for texts, ids, segments in tokens:
        a, b = [*tokenizer.encode_ids(texts), None][:2]
        found, its_segments = make_row(a, b, tokenizer, 99)
        assert found == ids
        assert segments in (None, its_segments)


@NEWER
@pytest.mark.gate
@ALL
def test_methods_and_batches_of_many_tasks(folder_of, tmp_path, name):
    """Each method computes alone what it does in mixed batches and exports."""
    texts = {text.split("(")[0]: text for text in reversed(METHOD_TEXTS)}
    chosen = ["houlsby", "dora", "mad_x", "bitfit"]
    check_alike(folder_of(name), [texts[one] for one in chosen], tmp_path)


@NEWER
@ALL
def test_every_method_lists_its_variables(folder_of, name):
    _, config, _ = read_base(folder_of(name))
    shapes = encoder.list_variables(config)
    for text in METHOD_TEXTS:
        table = task_model.list_parameters(config, parse(text), TASK.build_head)
        own = {p.name for p in table.parameters if not p.is_added}
        assert own == shapes.keys()
        assert "hidden_weights_0" in {p.name for p in table.trained} or (
            config.has_pooler
        )


@NEWER
@ALL
def test_other_forms_are_refused(folder_of, name):
    _, config, _ = read_base(folder_of(name))
    with pytest.raises(UserError, match="another one like BERT"):
        written_form.check_form(config, written_form.HUGGING_FACE)
    with pytest.raises(UserError, match="another model like BERT"):
        foreign_base.check_is_bert(config, "it")


@pytest.mark.parametrize("engine", ["estimator", "strategy"])
@pytest.mark.older_stack
@pytest.mark.gate
@ALL
def test_texts_are_learned(
    folder_of, tiny_data, tmp_path, classify, name, engine
):
    bert, out = folder_of(name), tmp_path / "out"
    classify(
        task_name="custom",
        data_dir=tiny_data,
        init_checkpoint=bert,
        output_dir=out,
        do_train=True,
        do_eval=True,
        engine=engine,
        max_seq_length=24,
        train_batch_size=40,
        length_pool_batches=1,
        learning_rate=1e-2,
        num_train_epochs=30,
        adapter_size=8,
        cpu_lanes=1,
    )
    scores = json.loads((out / "eval_results.json").read_text())
    assert scores["eval_accuracy"] > 0.8
    predictor = Predictor.load(str(bert), {"one": str(out / "adapter")})
    texts = (tiny_data / "dev.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in texts]
    answers = predictor("one", [text for text, _ in rows])
    right = [a["label"] == label for a, (_, label) in zip(answers, rows)]
    assert np.mean(right) == pytest.approx(scores["eval_accuracy"])
