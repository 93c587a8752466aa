"""Models like BERT against transformers, and what a run of them does."""

import pathlib
import re
import shutil

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    entry_point,
    open_bert,
    open_checkpoint,
    read_json,
    write_json,
)
from numpy.testing import assert_allclose, assert_array_equal
from run_folders import check_texts_are_learned
from safetensors.numpy import load_file, save_file
from test_method_contract import TEXTS, check_alike, scores
from test_methods import METHOD_TEXTS
from test_roberta import reader
from tiny_artifacts import CLASSIFICATION, make_artifact, outputs_of, read_base

from adapter_bert.answering.predictor import Predictor
from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.hooks import Context
from adapter_bert.checkpoints import sources, training_state
from adapter_bert.checkpoints.weights import identify
from adapter_bert.commands import convert, merge, run_mlm
from adapter_bert.data.tables import Layout
from adapter_bert.data.tokenization import make_row
from adapter_bert.errors import UserError
from adapter_bert.graph.text_model import TextModel
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.masked_lm import MaskedLMHead
from adapter_bert.tasks.task_model import TaskModel, list_parameters
from adapter_bert.tasks.text_classification import TextClassification

NAMES = ("distilbert", "electra", "albert", "mpnet")
ALL = pytest.mark.parametrize("name", NAMES)
NEWER = pytest.mark.newer_stack
# Methods that train some of BERT's own layers alone.
ALONE = re.compile(r"top_layers|houlsby\(.*layers='|adapterdrop\(first")
TAGS = {"name": "tagging", "tags": ["O", "B-X"]}
TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("bad", "good"))


@pytest.fixture
def folder_of(golden_dir, tmp_path):
    """Gives a copy of a model's folder, with the files that are published."""

    def copy(name):
        ignored = shutil.ignore_patterns("expected.*")
        of_robertas = name == "roberta"
        place = golden_dir / ("roberta" if of_robertas else "architectures")
        return shutil.copytree(place / name, tmp_path / name, ignore=ignored)

    return copy


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
    names = {*NAMES, "bert", "roberta", "xlm-roberta", "camembert"}
    assert names == ARCHITECTURES.keys()


@NEWER
@ALL
def test_golden_hidden_states_and_logits(folder_of, recording, name):
    """Of the model, of its head of texts, and of its head of masked words."""
    weights, config, _ = read_base(folder_of(name))
    values = recording(f"architectures/{name}/expected")
    create = reader(weights)
    features = features_of(values)
    context = Context(features["input_mask"])
    model = TaskModel(config, parse("head"), TASK.build_head, create)
    hidden = model.bert(features["input_ids"], features["segment_ids"], context)
    real = values["attention_mask"] > 0
    for output in ("embedding_output", "sequence_output"):
        computed = getattr(hidden, output).numpy()[real]
        assert_allclose(computed, values[output][real], atol=1e-5)
    logits = model(features, context)["logits"]
    assert_allclose(logits, values["logits"], atol=1e-5)
    head = MaskedLMHead(config, create)
    places = np.tile(values["places"], (len(real), 1))
    output = head(
        model.bert, hidden.sequence_output, context, places, places * 0
    )
    assert_allclose(output["logits"], values["logits_of_words"], atol=1e-5)


@NEWER
def test_golden_logits_of_tokens(folder_of, recording):
    """Heads of questions and tags over all distances that are told apart."""
    weights, config, _ = read_base(folder_of("mpnet"))
    values = recording("architectures/mpnet/expected")
    real = values["attention_mask"] > 0
    assert real.shape[1] > encoder.GREATEST_DISTANCE
    features = features_of(values)
    context = Context(features["input_mask"])
    model = TaskModel(config, parse("head"), TASK.build_head, reader(weights))
    hidden = model.bert(features["input_ids"], features["segment_ids"], context)
    for task, kind in (({"name": "squad"}, "spans"), (TAGS, "tags")):

        def create(name, shape, initializer, kind=kind):
            end = "bias" if name.endswith("bias") else "weight"
            return tf.constant(values[f"{kind}_{end}"])

        head = restore_task(task, {}, "a test").build_head(config, create)
        outputs = head(model.bert, hidden.sequence_output, context)
        logits = outputs.get("logits")
        if kind == "spans":
            sides = ("start_logits", "end_logits")
            logits = tf.stack([outputs[side] for side in sides], axis=-1)
        expected = values[f"{kind}_logits"]
        assert_allclose(logits.numpy()[real], expected[real], atol=1e-5)


@NEWER
@ALL
def test_golden_ids(folder_of, golden_dir, name):
    opened = open_checkpoint(folder_of(name))
    tokenizer = sources.read_tokenizer(opened, sources.read_config(opened))
    path = golden_dir / "architectures" / name / "expected.json"
    for texts, ids, segments in read_json(path):
        a, b = [*tokenizer.encode_ids(texts), None][:2]
        computed, its_segments = make_row(a, b, tokenizer, 99)
        assert computed == ids
        assert segments in (None, its_segments)


@NEWER
@pytest.mark.parametrize("named", [False, True])
def test_pieces_of_sentencepiece_are_refused(folder_of, named):
    folder = folder_of("albert")
    (folder / "tokenizer.json").unlink()
    pieces = folder / "spiece.model"
    pieces.write_bytes(b"\n\x0e\n\x05<pad>")
    opened = open_checkpoint(folder)
    config = sources.read_config(opened)
    refusals.check(
        lambda: sources.read_tokenizer(
            opened, config, str(pieces) if named else ""
        ),
        "save_pretrained(folder) writes",
    )


@NEWER
@pytest.mark.gate
@pytest.mark.parametrize(
    "name, texts",
    [
        ("distilbert", ["dora(rank=2)"]),
        ("electra", ["houlsby(size=4)", "mad_x(4, 3)"]),
        ("albert", ["houlsby(size=4)", "bitfit"]),
        (
            "mpnet",
            [
                "houlsby(size=4)",
                "prefix(3, reparameterize=False)",
                "prompt(3, heads_read='prompt')",
                "stack(prompt(1), prefix(2))",
            ],
        ),
    ],
)
def test_methods_and_batches_of_many_tasks(
    folder_of, golden_dir, tmp_path, name, texts
):
    """Each method computes alone what it does in mixed batches and exports."""
    folder = folder_of(name)
    if name == "albert":
        # Only word pieces can be exported.
        (folder / "tokenizer.json").unlink()
        vocabulary = golden_dir / "architectures" / "electra" / "vocab.txt"
        others = "".join(f"word{number}\n" for number in range(11))
        (folder / "vocab.txt").write_text(vocabulary.read_text() + others)
    refused, _ = check_alike(folder, texts, tmp_path)
    assert not refused


@NEWER
def test_other_tokens_than_word_pieces_are_not_exported(folder_of, tmp_path):
    folder = folder_of("albert")
    make_artifact(tmp_path / "one", folder, "bitfit")
    bert = open_bert(folder)
    predictor = Predictor(bert)
    predictor.add(str(tmp_path / "one"), "one")
    refusals.check(
        lambda: TextModel(bert, {"one": predictor.task("one")}, 8),
        "can tokenize WordPieces alone",
    )


@NEWER
def test_what_shared_layers_mean_for_methods(folder_of):
    _, config, _ = read_base(folder_of("albert"))
    for text, count in (("layernorm", 2 * 8 + 4 * 16), ("lora(rank=2)", 384)):
        table = list_parameters(config, parse(text), TASK.build_head)
        assert table.trained_count == count + 2 * 16 + 2
    for method in map(
        parse, ("top_layers(k=1)", "houlsby(size=4, layers='1')")
    ):
        refusals.check(
            lambda m=method: list_parameters(config, m, TASK.build_head),
            "layers of this model share",
        )


@NEWER
@pytest.mark.parametrize(
    "name, change, fault",
    [
        ("albert", {"num_hidden_groups": 2}, "groups is 2, but only 1 can be"),
        ("albert", {"inner_group_num": 2}, "num is 2, but only 1 can be"),
        ("albert", {"model_type": ["albert"]}, "model_type is ['albert']"),
        ("albert", {"embedding_size": 0}, "embedding_size is 0"),
        ("electra", {"type_vocab_size": 0}, "type_vocab_size is 0"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "is 16, but only 32"),
    ],
)
def test_configs_that_cannot_be_computed_are_refused(
    folder_of, name, change, fault
):
    path = folder_of(name) / "config.json"
    write_json(path, {**read_json(path), **change})
    refusals.check(lambda: encoder.BertConfig.from_json_file(str(path)), fault)


@NEWER
@pytest.mark.parametrize(
    "shape, fault",
    [
        (None, "relative_attention_bias"),
        ([16, 2], r"relative_attention_bias.* \[16, 2\]"),
    ],
)
def test_scores_by_distance_that_do_not_fit_are_refused(
    folder_of, shape, fault
):
    path = folder_of("mpnet") / "model.safetensors"
    tensors = load_file(path)
    name = "mpnet.encoder.relative_attention_bias.weight"
    tensors.pop(name)
    if shape:
        tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, path)
    with pytest.raises(UserError, match=fault):
        read_base(path.parent)


@NEWER
@ALL
def test_every_method_lists_its_variables(folder_of, name):
    _, config, _ = read_base(folder_of(name))
    shapes = encoder.list_variables(config)
    for text in METHOD_TEXTS:
        if config.num_hidden_groups and ALONE.match(text):
            continue
        if "pooler" in text and not config.has_pooler:
            continue
        table = list_parameters(config, parse(text), TASK.build_head)
        of_bert = {p.name for p in table.parameters if not p.is_added}
        assert of_bert == shapes.keys()
        assert "hidden_weights_0" in {p.name for p in table.trained} or (
            config.has_pooler
        )


ELECTRA = {
    "bert/embeddings/projection": "electra/embeddings_project",
    "bert": "electra",
}
GROUP = "bert/encoder/transformer/group_0/inner_group_0"
ALBERT = {
    "bert/embeddings/projection": "bert/encoder/embedding_hidden_mapping_in",
    **{
        f"bert/encoder/group_0/{ours}": f"{GROUP}/{theirs}"
        for ours, theirs in (
            ("attention/output/LayerNorm", "LayerNorm"),
            ("attention", "attention_1"),
            ("output/LayerNorm", "LayerNorm_1"),
            ("output", "ffn_1/intermediate/output"),
            ("intermediate", "ffn_1/intermediate"),
        )
    },
}


@NEWER
@pytest.mark.parametrize(
    "name, theirs, gelu",
    [("electra", ELECTRA, "gelu_erf"), ("albert", ALBERT, "gelu")],
)
def test_googles_checkpoint_is_the_same_model(
    folder_of, tmp_path, name, theirs, gelu
):
    folder = folder_of(name)
    weights, config, base = read_base(folder)
    values = {"generator/embeddings/a": np.ones(3)}
    for variable in encoder.list_variables(config):
        ours = next((o for o in theirs if variable.startswith(f"{o}/")), "")
        renamed = theirs.get(ours, "") + variable.removeprefix(ours)
        values[renamed] = weights.read(variable)
    training_state.save_tensors(str(tmp_path / "model.ckpt"), values)
    about = read_json(folder / "config.json")
    if name == "albert":
        # As in google-research/albert.
        del about["model_type"]
    path = tmp_path / "albert_config.json"
    write_json(path, about)
    opened = open_checkpoint(tmp_path / "model.ckpt")
    read_back = sources.read_config(opened)
    assert read_back.hidden_act in (config.hidden_act, "gelu_new")
    shapes = encoder.list_variables(read_back)
    assert identify(opened.weights, shapes).fingerprint == base.fingerprint
    assert opened.weights.gelu == gelu


@NEWER
@ALL
def test_what_transformers_saved_is_written_the_same(
    folder_of, tmp_path, command, name
):
    """All tensors by their names, and all that decides what is computed."""
    folder, target = folder_of(name), tmp_path / "written"
    command(
        convert, init_checkpoint=folder, to="hugging_face", output_dir=target
    )
    theirs, ours = (
        load_file(place / "model.safetensors") for place in (folder, target)
    )
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert_array_equal(ours[key], value)
    about, written = (
        read_json(place / "config.json") for place in (folder, target)
    )
    left = {k: v for k, v in written.items() if about.get(k) != v}
    assert not left
    kept = ("tokenizer.json", "vocab.txt")
    for path in filter(pathlib.Path.exists, map(folder.joinpath, kept)):
        assert (target / path.name).read_bytes() == path.read_bytes()
    refusals.check(
        lambda: command(
            convert,
            init_checkpoint=folder,
            to="google",
            output_dir=tmp_path / "google",
        ),
        f"type is {name}, but google's form",
    )


@NEWER
def test_a_robertas_pooler_is_written_though_it_is_not_computed(
    roberta_folder, tmp_path, command
):
    """As `RobertaModel` saves one, and sentence-transformers."""
    path, target = roberta_folder / "model.safetensors", tmp_path / "written"
    tensors = load_file(path)
    size = len(tensors["roberta.encoder.layer.0.output.dense.bias"])
    tensors["roberta.pooler.dense.weight"] = np.tri(size, dtype=np.float32)
    tensors["roberta.pooler.dense.bias"] = np.ones(size, np.float32)
    save_file(tensors, path)
    command(
        convert,
        init_checkpoint=roberta_folder,
        to="hugging_face",
        output_dir=target,
    )
    written = load_file(target / "model.safetensors")
    for name in ("weight", "bias"):
        name = f"roberta.pooler.dense.{name}"
        assert_array_equal(written[name], tensors[name])


@NEWER
@ALL
@pytest.mark.parametrize("method", ["lora(rank=2)", "full"])
def test_a_merged_model_computes_the_same(
    folder_of, tmp_path, command, name, method
):
    folder, target = folder_of(name), tmp_path / "merged"
    kept, values = make_artifact(tmp_path / "one", folder, method)
    flags = {
        "init_checkpoint": folder,
        "adapter": tmp_path / "one",
        "output_dir": target,
    }
    if (name, method) == ("albert", "lora(rank=2)"):
        refusals.check(lambda: command(merge, **flags), "share their kernels")
        assert not target.exists()
        return
    command(merge, **flags)
    rows = [([2, *range(5, 20), 3], [0] * 17), ([2, 9, 3, 8, 3], [0] * 5)]
    task = restore_task(CLASSIFICATION, {}, "a test")
    expected = outputs_of(folder, kept, values, task, rows)
    opened = open_checkpoint(target)
    assert opened.labels == ("bad", "good")
    head = {
        name: opened.weights.read(name)
        for name in opened.weights.shapes
        if not name.startswith(("bert/", "cls/"))
    }
    assert ("hidden_weights_0" in head) == (name != "albert")
    outputs = outputs_of(target, parse("head"), head, task, rows)
    for ours, theirs in zip(outputs, expected):
        assert_allclose(ours["logits"], theirs["logits"], atol=1e-5)


@pytest.mark.parametrize(
    "name, engine",
    [
        ("electra", "strategy"),
        ("albert", "estimator"),
        ("mpnet", "strategy"),
        ("roberta", "strategy"),
    ],
)
@pytest.mark.older_stack
@pytest.mark.gate
def test_texts_are_learned(
    folder_of, tiny_data, tmp_path, classify, name, engine
):
    check_texts_are_learned(
        classify, folder_of(name), tiny_data, tmp_path / "out", engine=engine
    )


@NEWER
@pytest.mark.parametrize("name", ["albert", "electra"])
def test_sizes_are_described_from_a_config_alone(
    folder_of, classify, capsys, name
):
    folder = folder_of(name)
    classify(
        task_name="CoLA",
        bert_config_file=folder / "config.json",
        tuning_method="head",
        describe=True,
    )
    _, config, _ = read_base(folder)
    pooler = 16 * 16 + 16
    # The head's layers, of which one replaces a missing pooler.
    head = 2 * 16 + 2 + (0 if config.has_pooler else pooler)
    shown = capsys.readouterr().out
    assert f"Total Trainable Parameters = {head} " in shown
    of_bert = sum(map(np.prod, encoder.list_variables(config).values()))
    assert f"Total Parameters = {of_bert + head} " in shown


@NEWER
@pytest.mark.gate
@pytest.mark.parametrize("name", ["albert", "mpnet"])
def test_matrices_in_int8_and_bfloat16(folder_of, tmp_path, name):
    folder, answers = folder_of(name), []
    make_artifact(tmp_path / "one", folder, "pfeiffer(size=4)")
    for base, compute in (("float32", "float32"), ("int8", "bfloat16")):
        bert = open_bert(folder, compute_dtype=compute, base_dtype=base)
        predictor = Predictor(bert)
        predictor.add(str(tmp_path / "one"), "one")
        answers.append(scores(predictor("one", TEXTS)))
    difference = abs(answers[0] - answers[1]).max()
    assert 0 < difference < 0.1


@NEWER
@pytest.mark.gate
@pytest.mark.parametrize("name, last", [("albert", 2), ("mpnet", 1)])
def test_frozen_layers_are_cached(
    folder_of, tiny_data, tmp_path, classify, name, last
):
    bert, losses = folder_of(name), []
    about = read_json(bert / "config.json")
    about.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_json(bert / "config.json", about)
    for cached in (False, True):
        out = tmp_path / f"{cached}"
        classify(
            task_name="custom",
            data_dir=tiny_data,
            init_checkpoint=bert,
            output_dir=out,
            do_train=True,
            do_eval=True,
            max_seq_length=24,
            num_train_epochs=2,
            tuning_method=f"pfeiffer(size=4, layers='{last}')",
            cache_frozen_layers=cached,
            frozen_layers_dir=tmp_path,
            cpu_lanes=1,
        )
        scores = read_json(out / "eval_results.json")
        losses.append(scores["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert list(tmp_path.glob("*.npy"))


@NEWER
@pytest.mark.gate
@pytest.mark.parametrize("name", ["albert", "mpnet"])
def test_masked_tokens_are_learned(
    folder_of, text_flags, tmp_path, caplog, name
):
    text_flags.update(init_checkpoint=folder_of(name), num_train_epochs=1)
    with entry_point(run_mlm) as model_text:
        model_text(**text_flags, do_eval=True)
    for variable in ("transform/dense/kernel", "output_bias"):
        assert f"cls/predictions/{variable}: taken from" in caplog.text
    assert (tmp_path / "out" / "eval_results.json").exists()
