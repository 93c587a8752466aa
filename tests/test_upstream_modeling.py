"""`modeling.py` and `optimization.py` by BERT's and adapter-bert's names."""

import functools
import json
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT, read_json, run_command, write_json
from graphs import (
    INPUTS,
    batch,
    initialize,
    names,
    session,
    small_config,
    small_model,
    trained,
)
from numpy.testing import assert_allclose

from adapter_bert.errors import UserError
from adapter_bert.optimization import Recipe
from adapter_bert.upstream import modeling, optimization

v1 = tf.compat.v1
OLDER = pytest.mark.older_stack


def more_with_older(first, *others):
    """Cases, of which the first alone is for both TensorFlows and quick."""
    marks = OLDER, pytest.mark.gate
    return [first, *(pytest.param(x, marks=marks) for x in others)]


def unread(graph, outputs):
    """Operations with tensors that no output and no initializer needs."""
    needed, waiting = set(), [x.op for x in outputs]
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting += [x.op for x in op.inputs] + list(op.control_inputs)
    for op in set(graph.get_operations()) - needed:
        if op.inputs or op.outputs:
            yield op.name


@pytest.mark.parametrize("is_training", more_with_older(True, False))
def test_no_copy_is_left_unread(is_training):
    with session():
        model = small_model(is_training=is_training)
        outputs = [
            model.embedding_output,
            model.sequence_output,
            *model.all_encoder_layers,
            model.pooled_output,
        ]
        left = unread(v1.get_default_graph(), outputs)
        assert not [n for n in left if re.match(r"bert/Identity(_\d+)?$", n)]


def test_config_is_mutable_and_keeps_what_it_does_not_know(tmp_path):
    config = modeling.BertConfig(vocab_size=99, hidden_size=37)
    fields = json.loads(config.to_json_string())
    assert (fields["vocab_size"], fields["hidden_size"]) == (99, 37)
    assert fields["type_vocab_size"] == 16
    path = tmp_path / "bert_config.json"
    write_json(path, {**fields, "my_key": [1]})
    read = modeling.BertConfig.from_json_file(str(path))
    read.hidden_size = 38
    assert read.to_dict() == {**fields, "hidden_size": 38, "my_key": [1]}


def test_collections_of_variables():
    with session():
        small_model(adapter_fn="feedforward_adapter")
        all_names = names(v1.global_variables())
        assert names(v1.get_collection("adapters")) == {
            name for name in all_names if "/adapters/" in name
        }
        assert names(v1.get_collection("layer_norm")) == {
            name for name in all_names if "/LayerNorm/" in name
        }
        # A checkpoint is restored into frozen ones as well.
        assert names(v1.trainable_variables()) == all_names


METHODS = {
    "houlsby(size=4)": r".*/(adapters|LayerNorm)/.*",
    None: r"bert/.*",
    "lora(rank=2)": r".*/lora_.*",
    "prompt(length=2)": r"bert/embeddings/prompt",
    "prefix(length=2)": r"bert/prefix/.*",
    "top_layers(k=1)": r"bert/(encoder/layer_1|pooler)/.*",
}


@pytest.mark.parametrize("method", more_with_older(*METHODS), ids=str)
def test_any_optimizer_trains_what_the_method_trains(method):
    with session():
        model = small_model(tuning_method=method)
        weights = v1.get_variable("output_weights", [2, 16])
        logits = tf.matmul(model.get_pooled_output(), weights, transpose_b=True)
        loss = tf.reduce_sum(tf.square(logits - 1.0))
        expected = {
            name
            for name in names(v1.global_variables())
            if re.fullmatch(METHODS[method], name)
        } | {"output_weights"}
        optimizer = v1.train.AdamOptimizer(0.01)
        pairs = optimizer.compute_gradients(loss)
        moved = names(v for g, v in pairs if g is not None)
        assert moved == trained() == expected


def recorded_model(folder, arrays, inputs, **method):
    """The recorded model: its BertModel, logits and loss."""
    config = modeling.BertConfig.from_json_file(
        str(folder / "bert_config.json")
    )
    model = modeling.BertModel(config, False, *inputs, **method)
    weights, bias = modeling.head_variables(
        "output_weights", "output_bias", 3, config.hidden_size
    )
    logits = tf.matmul(model.pooled_output, weights, transpose_b=True) + bias
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=arrays["label_ids"], logits=logits
        )
    )
    modeling.start_from(str(folder / "model.ckpt-0"), use_tpu=False)
    return model, logits, loss


@pytest.mark.parametrize("by_function", more_with_older(True, False))
def test_golden_forward_pass_and_steps(golden_dir, by_function):
    folder = golden_dir / "adapter_bert_tiny"
    training = read_json(folder / "training.json")
    size = training["adapter_size"]
    method = {"tuning_method": f"houlsby(size={size})"}
    if by_function:
        adapter = modeling.feedforward_adapter
        method = {"adapter_fn": functools.partial(adapter, hidden_size=size)}
    with session() as opened:
        arrays = np.load(folder / "forward.npz")
        inputs = [tf.constant(arrays[name]) for name in INPUTS]
        model, logits, loss = recorded_model(folder, arrays, inputs, **method)
        assert names(v1.global_variables()) == {n for n, _ in training["all"]}
        assert trained() == set(training["trainable"])
        step = optimization.create_optimizer(
            loss,
            training["learning_rate"],
            training["num_train_steps"],
            training["num_warmup_steps"],
            False,
        )
        computed = {
            "embedding_output": model.get_embedding_output(),
            "sequence_output": model.get_sequence_output(),
            "pooled_output": model.get_pooled_output(),
            "logits": logits,
            "loss": loss,
            **{
                f"layer_{number}": layer
                for number, layer in enumerate(model.get_all_encoder_layers())
            },
        }
        initialize(opened)
        for name, value in opened.run(computed).items():
            assert_allclose(value, arrays[name], atol=1e-5, err_msg=name)
        values = {v.op.name: v for v in optimization.trained_variables()}
        for number in range(1, 21):
            opened.run(step)
            if number in (1, 5, 20):
                expected = np.load(folder / f"after_{number}.npz")
                for name, value in opened.run(values).items():
                    assert_allclose(value, expected[name], atol=1e-4)


@pytest.mark.gate
@OLDER
@pytest.mark.parametrize(
    "activation, name",
    [
        ("GELU", "gelu"),
        ("", "linear"),
        (None, "linear"),
        (modeling.gelu, "gelu"),
        (lambda x: tf.maximum(x, 0.0), "relu"),
    ],
)
def test_activations_in_every_form_that_bert_takes(activation, name):
    outputs = []
    for act in (name, activation):
        with session() as opened:
            config = small_config(
                hidden_act=act, initializer_range=0.5, num_hidden_layers=1
            )
            model = small_model(config, False)
            [slope] = tf.gradients(
                tf.reduce_sum(model.sequence_output**3),
                [model.get_embedding_table()],
            )
            initialize(opened)
            slope = tf.convert_to_tensor(slope)
            outputs.append(opened.run([model.sequence_output, slope]))
    for x, y in zip(*outputs):
        assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@OLDER
def test_single_layers_make_the_same_model():
    """`transformer_model` and the like, on the variables of BertModel."""
    config = small_config()
    with session() as opened:
        model = small_model(config, False)
        ids, mask, segments = batch(config)
        with v1.variable_scope("bert", reuse=True):
            with v1.variable_scope("embeddings"):
                vectors, table = modeling.embedding_lookup(
                    ids, 40, 16, use_one_hot_embeddings=True
                )
                embedded = modeling.embedding_postprocessor(
                    vectors,
                    use_token_type=True,
                    token_type_ids=segments,
                    token_type_vocab_size=2,
                    max_position_embeddings=24,
                    dropout_prob=0.0,
                )
            with v1.variable_scope("encoder"):
                layers = modeling.transformer_model(
                    embedded,
                    modeling.create_attention_mask_from_input_mask(ids, mask),
                    16,
                    2,
                    2,
                    20,
                    modeling.get_activation("gelu"),
                    0.0,
                    0.0,
                    do_return_all_layers=True,
                )
        assert table is model.get_embedding_table()
        initialize(opened)
        expected = [model.embedding_output, *model.all_encoder_layers]
        for x, y in zip(*opened.run([expected, [embedded, *layers]])):
            assert_allclose(x, y, atol=1e-5)


def test_a_checkpoint_that_lacks_variables_of_bert_is_refused(
    golden_dir, tmp_path, caplog
):
    folder = golden_dir / "adapter_bert_tiny"
    config = modeling.BertConfig.from_json_file(
        str(folder / "bert_config.json")
    )
    with session() as opened:
        small_model(config, adapter_fn="feedforward_adapter")
        initialize(opened)
        saver = v1.train.Saver(optimization.trained_variables())
        path = saver.save(opened, str(tmp_path / "model.ckpt"))
        with pytest.raises(ValueError, match="lacks .*expected a whole pre"):
            modeling.get_assignment_map_from_checkpoint(
                v1.trainable_variables(), path
            )
    config.hidden_size *= 2
    with session():
        small_model(config)
        path = str(folder / "model.ckpt-0")
        assigned, initialized = modeling.get_assignment_map_from_checkpoint(
            v1.trainable_variables(), path
        )
        assert set(initialized) == {*assigned, *(f"{n}:0" for n in assigned)}
        pooler = v1.trainable_variables("bert/pooler/")
        some, _ = modeling.get_assignment_map_from_checkpoint(pooler, path)
        assert len(some) == 2
        assert "starts from no value" not in caplog.text
        with pytest.raises(ValueError, match="shape"):
            v1.train.init_from_checkpoint(path, assigned)


@pytest.fixture
def warned():
    """Has TensorFlow log warnings, which other tests may have switched off."""
    before = v1.logging.get_verbosity()
    v1.logging.set_verbosity(v1.logging.WARN)
    yield
    v1.logging.set_verbosity(before)


@pytest.mark.older_stack
def test_each_model_of_a_graph_starts_from_a_checkpoint(
    tmp_path, caplog, warned
):
    def words():
        return [
            v
            for v in v1.global_variables()
            if v.op.name.endswith("/word_embeddings")
        ]

    with session(2) as opened:
        small_model()
        initialize(opened)
        path = v1.train.Saver().save(opened, str(tmp_path / "model.ckpt"))
        [expected] = opened.run(words())
    for together in (False, True):
        caplog.clear()
        with session() as opened:
            for _ in range(2):
                small_model(tuning_method="lora(rank=2)")
            variables = v1.trainable_variables()
            models = [
                [v for v in variables if v.op.name.startswith(f"{scope}/")]
                for scope in ("bert", "bert_1")
            ]
            for tvars in [variables] if together else models:
                assigned, initialized = (
                    modeling.get_assignment_map_from_checkpoint(tvars, path)
                )
                assert {f"{n}:0" for n in assigned.values()} <= set(initialized)
                v1.train.init_from_checkpoint(path, assigned)
            initialize(opened)
            first, second = opened.run(words())
        assert np.array_equal(first, expected)
        assert np.array_equal(second, expected) != together
        assert ("the BertModel in bert_1 starts from no" in caplog.text) == (
            together
        )


def test_a_program_s_verbosity_shows_which_variables_start(
    golden_dir, caplog, warned
):
    path = str(golden_dir / "adapter_bert_tiny" / "model.ckpt-0")
    v1.logging.set_verbosity(v1.logging.INFO)
    with session():
        v1.get_variable("output_bias", [3])
        modeling.start_from(path, use_tpu=False)
    [line] = [r for r in caplog.records if "INIT_FROM_CKPT" in r.getMessage()]
    assert line.name == "tensorflow"
    assert line.getMessage().startswith("  name = output_bias:0, shape = (3,)")


def test_no_weight_stays_random_in_silence(golden_dir):
    two_lines = "`import tensorflow.compat.v1 as tf` and `tf.disable_v2_beh"
    with tf.init_scope(), pytest.raises(RuntimeError, match=two_lines):
        small_model()
    path = str(golden_dir / "adapter_bert_tiny" / "model.ckpt-0")
    with session(), pytest.raises(ValueError, match="found none; pass tf"):
        modeling.get_assignment_map_from_checkpoint(
            v1.trainable_variables(), path
        )


@pytest.mark.parametrize(
    "method, error, message",
    [
        ({"tuning_method": "magic"}, UserError, "magic"),
        ({"tuning_method": "fusion(a, b)"}, ValueError, "without parts"),
        ({"tuning_method": "mam"}, ValueError, "without parts .* not union"),
        ({"adapter_fn": "magic"}, ValueError, "feedforward_adapter"),
        (
            {"tuning_method": "bitfit", "adapter_fn": "feedforward_adapter"},
            ValueError,
            "found both",
        ),
    ],
)
def test_methods_that_are_refused(method, error, message):
    with session(), pytest.raises(error, match=message):
        small_model(**method)


@pytest.mark.parametrize(
    "shape, sizes, message",
    [
        ([3], {}, "rank 1, expected rank 2"),
        ([3, 25], {}, "25 tokens .* at most the 24"),
        ([3, 7], {"hidden_size": 17}, "17"),
        ([3, 7], {"hidden_act": "magic"}, "magic"),
        ([3, 7], {"hidden_act": 7}, "activation 7"),
    ],
)
def test_batches_and_sizes_that_are_refused(shape, sizes, message):
    with session(), pytest.raises(ValueError, match=message):
        ids = tf.zeros(shape, tf.int32)
        modeling.BertModel(small_config(**sizes), False, ids)


def test_a_method_s_recipe():
    recipe = Recipe(frozenset({"ours/scale"}), {"ours/scale": 3.0})
    with session() as opened:
        plain, scaled = (
            v1.get_variable(name, initializer=tf.constant([1.0]))
            for name in ("plain", "a_scale")
        )
        optimization.add_recipe(recipe, {"ours/scale": scaled})
        loss = tf.reduce_sum(plain + scaled)
        step = optimization.create_optimizer(loss, 0.1, 10**9, 0, False)
        initialize(opened)
        opened.run(step)
        decayed, other = opened.run([plain, scaled])
        assert_allclose(3 * (1 - decayed - 0.1 * 0.01), 1 - other, rtol=1e-5)


def test_what_a_method_freezes_stays():
    """Also by a program's `create_optimizer` that hands in zeros."""
    with session() as opened:
        model = small_model(tuning_method="lora(rank=2)")
        variables = v1.trainable_variables()
        gradients = [
            tf.zeros_like(v) if g is None else g
            for g, v in zip(
                tf.gradients(tf.reduce_sum(model.pooled_output), variables),
                variables,
            )
        ]
        step = optimization.AdamWeightDecayOptimizer(
            0.1, weight_decay_rate=0.1
        ).apply_gradients(zip(gradients, variables))
        initialize(opened)
        before = opened.run(variables)
        opened.run(step)
        moved = {
            v.op.name
            for v, x, y in zip(variables, before, opened.run(variables))
            if not np.array_equal(x, y)
        }
        assert moved and moved <= trained()
        assert not [
            n for n in names(v1.global_variables()) if "kernel/adam" in n
        ]


# Two devices with two rows each, and one with all four.
REPLICAS = """
import sys, zlib
sys.path[:0] = {paths!r}
import numpy as np, tensorflow as tf
from graphs import initialize, modeling, optimization, session, small_config, v1
[cpu] = tf.config.list_physical_devices("CPU")
logical = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, logical)
rows = np.arange(1, 29, dtype=np.int32).reshape(4, 7)

def trained_on(count):
    def train():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        ids = tf.constant(rows.reshape(count, -1, 7))[number]
        model = modeling.BertModel(
            small_config(num_hidden_layers=1),
            False,
            ids,
            tuning_method="houlsby(size=4)",
        )
        loss = tf.reduce_mean(model.pooled_output[:, 0])
        return optimization.create_optimizer(loss, 1e-2, 20, 0, False)

    with session() as opened:
        devices = [f"CPU:{{n}}" for n in range(count)]
        strategy = tf.distribute.MirroredStrategy(devices)
        local = strategy.experimental_local_results
        with strategy.scope():
            step = local(strategy.run(train))
        copies = {{v.op.name: local(v) for v in v1.global_variables()}}
        initialize(opened)
        for name, of in copies.items():
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            if of[0].shape.rank and "/adam_" not in name:
                value = rng.normal(scale=0.02, size=of[0].shape)
                opened.run([x.assign(value.astype(np.float32)) for x in of])
        for _ in range(5):
            opened.run(step)
        return opened.run(copies)

one, two = map(trained_on, (1, 2))
print(one["global_step"][0], max(
    np.abs(x - one[name][0]).max() for name, of in two.items() for x in of
))
"""


@pytest.mark.gate
@pytest.mark.older_stack
def test_replicas_train_as_one_device():
    code = REPLICAS.format(paths=[str(ROOT), str(ROOT / "tests")])
    done = run_command(sys.executable, "-c", code, check=True)
    steps, furthest = map(float, done.stdout.split()[-2:])
    assert steps == 5 and furthest < 1e-5
