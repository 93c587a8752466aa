"""Hugging Face's folders: what lies beside the weights, and heads' labels."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.weights import with_labels
from adapter_bert.errors import UserError


@pytest.fixture
def described(tiny_bert, tmp_path):
    """A copy of the tiny BERT, with other files and tensors beside it."""

    def make(tensors=(), **contents):
        folder = tmp_path / "described"
        shutil.copytree(tiny_bert, folder, dirs_exist_ok=True)
        values = safetensors.numpy.load_file(folder / "model.safetensors")
        safetensors.numpy.save_file(
            {**values, **dict(tensors)}, folder / "model.safetensors"
        )
        for name, content in contents.items():
            path = folder / f"{name}.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**before, **content}))
        return folder

    return make


@pytest.mark.parametrize(
    "tokenizer, message",
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"do_lower_case": True, "strip_accents": False}, "accents: False, "),
        ({"do_lower_case": False, "strip_accents": True}, "accents: True, "),
        (
            {"tokenize_chinese_chars": False},
            "Chinese characters are words: False",
        ),
    ],
)
def test_texts_that_are_cut_otherwise_are_refused(
    described, tokenizer, message
):
    with pytest.raises(UserError, match=message):
        sources.open_init_checkpoint(str(described(tokenizer_config=tokenizer)))


def test_a_foreign_tokenizer_may_be_named_by_the_config_alone(described):
    folder = described(config={"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(UserError, match="config.json: BertJapaneseTokenizer"):
        sources.open_init_checkpoint(str(folder))


def test_accents_as_berts_are_no_obstacle(described):
    for tokenizer in (
        {"do_lower_case": True, "strip_accents": None},
        {"do_lower_case": False, "strip_accents": False},
        {"do_lower_case": True, "strip_accents": True},
    ):
        folder = described(tokenizer_config=tokenizer)
        opened = sources.open_init_checkpoint(str(folder))
        assert opened.do_lower_case is tokenizer["do_lower_case"]


def test_whole_numbers_of_a_quantized_model_are_refused(described):
    name = "encoder.layer.0.attention.self.query.weight"
    folder = described({name: np.ones((16, 16), np.int8)})
    weights = sources.open_init_checkpoint(str(folder)).weights
    with pytest.raises(UserError, match="as of a quantized model"):
        weights.read("bert/encoder/layer_0/attention/self/query/kernel")


HEAD = {
    "classifier.weight": np.arange(48, dtype=np.float32).reshape(3, 16),
    "classifier.bias": np.arange(3, dtype=np.float32),
}
LABELS = ["contradiction", "entailment", "neutral"]


@pytest.mark.parametrize(
    "named, labels, order",
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], LABELS, [0, 2, 1]),
        (["Contradiction", "Entailment", "Neutral"], LABELS, [0, 1, 2]),
        # Nobody has named them.
        (["LABEL_0", "LABEL_1", "LABEL_2"], LABELS, [0, 1, 2]),
        (None, LABELS, [0, 1, 2]),
        # Of numbers nothing is known.
        (["bad", "so so", "good"], ["0", "1", "2"], [0, 1, 2]),
        (["bad", "so so", "good"], LABELS, None),
        (["bad", "good"], LABELS, None),
    ],
)
def test_a_heads_outputs_are_those_of_the_tasks_labels(
    described, named, labels, order
):
    config = {} if named is None else {"id2label": dict(enumerate(named))}
    opened = sources.open_init_checkpoint(str(described(HEAD, config=config)))
    found = with_labels(opened.weights, opened.labels, labels)
    names = [name for name in found.shapes if name.startswith("output_")]
    if order is None:
        assert not names
        return
    assert sorted(names) == ["output_bias", "output_weights"]
    assert found.read("output_bias").tolist() == order
    np.testing.assert_array_equal(
        found.read("output_weights"), HEAD["classifier.weight"][order]
    )


@pytest.mark.older_stack
def test_a_run_reads_a_head_by_its_labels(classify, tiny_flags, described):
    """As that of a published model, whose order is another one."""
    flags = {k: v for k, v in tiny_flags.items() if k != "adapter_size"}
    flags.update(do_train=False, do_predict=True, tuning_method="head")
    found = []
    for number, order in enumerate(([0, 1], [1, 0])):
        labels = ["bad", "good"]
        head = {name: value[order] for name, value in HEAD.items()}
        folder = described(
            head, config={"id2label": dict(enumerate(labels[n] for n in order))}
        )
        out = folder.parent / f"out{number}"
        classify(**{**flags, "init_checkpoint": folder, "output_dir": out})
        found.append((out / "test_results.tsv").read_text())
    assert found[0] == found[1]
    # Without the file that has labels.
    texts = flags.pop("data_dir") / "test.tsv"
    alone = folder.parent / "alone"
    asked = {**flags, "init_checkpoint": folder, "predict_file": texts}
    classify(**{**asked, "output_dir": alone})
    # The columns are in the order of the head.
    np.testing.assert_array_equal(
        np.loadtxt(alone / "test_results.tsv")[:, ::-1],
        np.loadtxt(folder.parent / "out0" / "test_results.tsv"),
    )
    flags.update(data_dir=texts.parent, output_dir=folder.parent / "none")
    for config in (
        {"id2label": {0: "no", 1: "yes"}},
        {
            "id2label": {0: "bad", 1: "good"},
            "architectures": ["BertForSequenceClassification"],
            "problem_type": "multi_label_classification",
        },
        {
            "id2label": {0: "bad", 1: "good"},
            "architectures": ["BertForTokenClassification"],
        },
    ):
        folder = described(head, config=config)
        with pytest.raises(UserError, match="no trained head of this task"):
            classify(**{**flags, "init_checkpoint": folder})
