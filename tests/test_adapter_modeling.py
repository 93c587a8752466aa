"""One suite for every tuning method, then what each alone promises."""

import numpy as np
import pytest
import tensorflow as tf

import adapter_modeling
import modeling
import optimization
import task_model
from adapter_modeling import METHODS, parse
from errors import UserError
from hooks import Context, Hooks
from tasks.text_classification import Layout, TextClassification

TASK = TextClassification("tiny", ("a", "b"), Layout(0), Layout(0))
BASE = modeling.BertConfig(vocab_size=30522)

# Parameters that the method trains in BERT-base with two classes, outside the
# head: the published counts, or the sum that each docstring derives.
TRAINED_IN_BERT_BASE = {
    "houlsby(size=2)": 92_208 + 38_400,
    "houlsby(size=8)": 313_536 + 38_400,
    "houlsby(size=64)": 2_379_264 + 38_400,
    "houlsby(size=256)": 9_461_760 + 38_400,
    "houlsby(size=64, layers='6-11')": 1_189_632 + 18_432,
    "houlsby(size=64, layers='0,2,11')": 594_816 + 9_216,
    "houlsby(size=64, layers='0-11')": 2_379_264 + 36_864,
    "full": 109_482_240,
    "top_layers(k=1)": 7_678_464,
    "top_layers(k=12)": 12 * 7_087_872 + 590_592,
    "layernorm": 38_400,
    "head": 0,
}
METHOD_TEXTS = [
    "houlsby(size=4)",
    "houlsby(size=4, layers='1')",
    "full",
    "top_layers(1)",
    "layernorm",
    "head",
]


class TinyModel:
    """A method on the tiny BERT, with fresh values."""

    def __init__(self, config, method):
        self.table = task_model.list_parameters(config, method, TASK.build_head)
        self.variables = {}

        def create(name, shape, initializer):
            assert name not in self.variables
            self.variables[name] = modeling.create_variable(
                name, shape, initializer, seed=3
            )
            return self.variables[name]

        self.model = task_model.TaskModel(
            config, method, TASK.build_head, create
        )
        rng = np.random.default_rng(0)
        ids = rng.integers(0, config.vocab_size, (4, 9)).astype(np.int32)
        self.features = {
            "input_ids": tf.constant(ids),
            "segment_ids": tf.constant(ids % 2),
            "input_mask": tf.ones([4, 9], tf.int32),
            "label_ids": tf.constant([0, 1, 1, 0]),
        }

    def context(self, training=False):
        return Context(
            self.features["input_mask"], training, tf.constant([1, 2])
        )

    def logits(self):
        return self.model(self.features, self.context())["logits"]

    def train_one_step(self):
        trained = [(p.name, self.variables[p.name]) for p in self.table.trained]
        optimizer = optimization.AdamWeightDecay(
            trained,
            optimization.Schedule(1e-3, 10, 0),
            lambda name, shape: tf.Variable(tf.zeros(shape)),
        )
        with tf.GradientTape() as tape:
            predictions = self.model(self.features, self.context(True))
            loss = tf.reduce_mean(
                self.model.head.loss(predictions, self.features)
            )
        gradients = tape.gradient(loss, [v for _, v in trained])
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(optimization.clip(gradients), 1e-3)


@pytest.fixture(params=METHOD_TEXTS)
def tiny(request, tiny_config):
    return TinyModel(tiny_config, parse(request.param))


def test_all_methods_are_in_the_suites():
    for texts in (METHOD_TEXTS, TRAINED_IN_BERT_BASE):
        assert {text.split("(")[0] for text in texts} == set(METHODS)


def test_output_at_the_start_is_nearly_plain_berts(tiny, tiny_config):
    plain = modeling.Bert(
        tiny_config, lambda name, *_: tiny.variables[name], Hooks()
    )
    ids, segments = tiny.features["input_ids"], tiny.features["segment_ids"]
    expected = plain(ids, segments, tiny.context()).sequence_output
    actual = tiny.model.bert(ids, segments, tiny.context()).sequence_output
    np.testing.assert_allclose(actual, expected, atol=2e-3)


def test_one_step_moves_what_is_trained_and_no_other_bit(tiny):
    before = {n: v.numpy().copy() for n, v in tiny.variables.items()}
    tiny.train_one_step()
    trained = {p.name for p in tiny.table.trained}
    assert trained
    for name, variable in tiny.variables.items():
        same = np.array_equal(before[name], variable.numpy())
        assert same != (name in trained), name


@pytest.mark.parametrize("text,count", TRAINED_IN_BERT_BASE.items())
def test_trained_count_is_the_published_one(text, count):
    table = task_model.list_parameters(BASE, parse(text), TASK.build_head)
    assert table.trained_count == count + 2 * 768 + 2


@pytest.mark.parametrize("text", METHOD_TEXTS)
def test_text_of_a_method_parses_to_an_equal_one(text):
    method = parse(text)
    assert parse(str(method)) == method


def test_houlsby_computes_the_papers_formula():
    config = modeling.BertConfig(
        vocab_size=5, hidden_size=4, num_attention_heads=2
    )
    adapter = adapter_modeling.Adapter(
        "x", config, 3, 0.5, modeling.create_variable
    )
    for variable in (adapter.down_bias, adapter.up_bias):
        variable.assign(tf.random.stateless_normal(variable.shape, [4, 5]))
    h = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    inner = h @ adapter.down.numpy() + adapter.down_bias.numpy()
    inner = (
        0.5
        * inner
        * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    )
    expected = h + inner @ adapter.up.numpy() + adapter.up_bias.numpy()
    np.testing.assert_allclose(adapter(tf.constant(h)), expected, atol=1e-6)


def test_init_scale_is_the_deviation_and_cuts_at_two():
    values = modeling.initial_values(
        "w", (300, 300), modeling.truncated_normal(0.01), seed=1
    )
    assert abs(values).max() <= 0.02
    # A normal cut at two deviations keeps 0.8796 of its deviation.
    assert abs(values.std() - 0.008796) < 1e-4


def test_defaults_fill_arguments_that_the_text_leaves_out():
    defaults = {"size": 8, "init_scale": 1e-3}
    assert parse("houlsby", defaults) == adapter_modeling.Houlsby(8, 1e-3)
    assert parse("houlsby(16)", defaults).size == 16
    assert parse("full", defaults) == adapter_modeling.Full()


@pytest.mark.parametrize(
    "text,words",
    [
        ("lora", "unknown tuning method 'lora'; expected one of houlsby"),
        ("houlsby(", "cannot be read"),
        ("houlsby(size=x)", "cannot be read"),
        ("__import__('os').system('true')", "cannot be read"),
        ("", "cannot be read"),
        ("houlsby(size=0)", "expected at least 1"),
        ("houlsby(size='8')", "expected a value of type int"),
        ("houlsby(size=True)", "expected a value of type int"),
        ("houlsby(init_scale=-1.0)", "expected a positive number"),
        ("houlsby(depth=2)", "it takes: size, init_scale"),
        ("houlsby(layers=1)", "expected a value of type str"),
        ("houlsby(layers='')", "'' is neither a layer nor a range"),
        ("houlsby(layers='a')", "expected 'all', or numbers and ranges"),
        ("houlsby(layers='3-1')", "'3-1' is neither a layer nor a range"),
        ("houlsby(layers='-1')", "'-1' is neither a layer nor a range"),
        ("houlsby(layers='1-')", "'1-' is neither a layer nor a range"),
        ("houlsby(layers='1-2-3')", "'1-2-3' is neither a layer nor a range"),
        ("houlsby(layers='0,,2')", "'' is neither a layer nor a range"),
        ("houlsby(layers='0,all')", "'all' is neither a layer nor a range"),
        ("houlsby(layers='0-99999999')", "is neither a layer nor a range"),
        ("houlsby(layers='2,2')", "layer 2 is named twice"),
        ("houlsby(layers='0-3,2-5')", "layer 2 is named twice"),
        ("houlsby(1, 2.0, '3', 4)", "4 arguments"),
        ("houlsby(**{'size': 3})", "no argument None"),
        ("houlsby(3, size=4)", "size twice"),
        ("full(1)", "it takes: none"),
        ("top_layers(0)", "expected at least 1"),
    ],
)
def test_a_bad_method_is_one_line_that_says_why(text, words):
    with pytest.raises(UserError, match="(?s)^[^\n]*$") as caught:
        parse(text)
    assert words in str(caught.value)


def test_top_layers_beyond_the_model_are_refused(tiny_config):
    with pytest.raises(UserError, match="only 2 layers"):
        task_model.list_parameters(
            tiny_config, parse("top_layers(3)"), TASK.build_head
        )


@pytest.mark.parametrize(
    "text,numbers",
    [
        ("0", [0]),
        ("6-11", [6, 7, 8, 9, 10, 11]),
        ("0,2,6-8", [0, 2, 6, 7, 8]),
        ("6-7,10,0", [0, 6, 7, 10]),
        ("3-3", [3]),
    ],
)
def test_layers_are_numbers_and_inclusive_ranges(text, numbers):
    assert adapter_modeling.layer_numbers(text) == numbers


@pytest.mark.parametrize("layers", ["2", "0,9", "1-2", "999"])
def test_adapters_beyond_the_model_are_refused(tiny_config, layers):
    with pytest.raises(UserError, match=f"'{layers}'.* only the layers 0 to 1"):
        task_model.list_parameters(
            tiny_config, parse(f"houlsby(layers={layers!r})"), TASK.build_head
        )


def test_all_layers_go_without_saying():
    """Texts of runs and adapters from before `layers` name the same method."""
    text = "houlsby(size=64, init_scale=0.01)"
    assert parse(text) == parse("houlsby(layers='all')")
    assert str(parse("houlsby(layers='all')")) == text
    assert str(parse("houlsby(layers='0,2')")) == (
        "houlsby(size=64, init_scale=0.01, layers='0,2')"
    )


def names_outside_head(parameters):
    return {p.name for p in parameters if p.group != "head"}


def test_all_layers_train_every_adapter_and_every_layer_norm(tiny_config):
    table = TinyModel(tiny_config, parse("houlsby(size=4, layers='all')")).table
    scopes = [
        f"bert/encoder/layer_{layer}/{place}"
        for layer in (0, 1)
        for place in ("attention/output", "output")
    ]
    assert names_outside_head(table.trained) == {
        f"{scope}/adapters/{name}"
        for scope in scopes
        for name in ("weights1", "biases1", "weights2", "biases2")
    } | {
        f"{scope}/LayerNorm/{name}"
        for scope in ["bert/embeddings", *scopes]
        for name in ("beta", "gamma")
    }


@pytest.mark.parametrize("layer", [0, 1])
def test_a_named_layer_alone_has_adapters_and_is_trained(tiny_config, layer):
    every = TinyModel(tiny_config, parse("houlsby(size=4)"))
    some = TinyModel(tiny_config, parse(f"houlsby(size=4, layers='{layer}')"))
    scope = f"bert/encoder/layer_{layer}/"
    assert names_outside_head(some.table.trained) == {
        name
        for name in names_outside_head(every.table.trained)
        if name.startswith(scope)
    }
    assert set(some.variables) == {
        name
        for name in every.variables
        if "/adapters/" not in name or name.startswith(scope)
    }
    for name, variable in some.variables.items():
        assert np.array_equal(variable, every.variables[name]), name


def test_all_layers_named_leave_only_the_embeddings_layer_norm(tiny_config):
    every = TinyModel(tiny_config, parse("houlsby(size=4)"))
    named = TinyModel(tiny_config, parse("houlsby(size=4, layers='0-1')"))
    assert [p.name for p in every.table.parameters] == [
        p.name for p in named.table.parameters
    ]
    assert names_outside_head(every.table.trained) - names_outside_head(
        named.table.trained
    ) == {f"bert/embeddings/LayerNorm/{name}" for name in ("beta", "gamma")}
    assert not names_outside_head(named.table.trained) - names_outside_head(
        every.table.trained
    )
    assert np.array_equal(every.logits(), named.logits())


def test_a_layer_without_adapters_computes_what_berts_does(tiny_config):
    tiny = TinyModel(tiny_config, parse("houlsby(layers='1')"))
    plain = modeling.Bert(
        tiny_config, lambda name, *_: tiny.variables[name], Hooks()
    )
    ids, segments = tiny.features["input_ids"], tiny.features["segment_ids"]
    expected = plain(ids, segments, tiny.context()).layer_outputs
    actual = tiny.model.bert(ids, segments, tiny.context()).layer_outputs
    assert np.array_equal(actual[0], expected[0])
    assert not np.array_equal(actual[1], expected[1])


@pytest.mark.parametrize(
    "layers,lowest", [("all", 0), ("0-1", 1), ("0", 1), ("1", 2)]
)
def test_the_gradient_ends_at_the_lowest_adapter(tiny_config, layers, lowest):
    """Of the outputs of embeddings and layers, it reaches those from there."""
    tiny = TinyModel(tiny_config, parse(f"houlsby(size=4, layers='{layers}')"))
    trained = [tiny.variables[p.name] for p in tiny.table.trained]
    context = tiny.context(training=True)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(trained)
        output = tiny.model.bert(
            tiny.features["input_ids"], tiny.features["segment_ids"], context
        )
        predictions = tiny.model.head(
            tiny.model.bert, output.sequence_output, context
        )
        loss = tf.reduce_mean(tiny.model.head.loss(predictions, tiny.features))
    outputs = [output.embedding_output, *output.layer_outputs]
    of_trained, of_outputs = tape.gradient(loss, [trained, outputs])
    for parameter, gradient in zip(tiny.table.trained, of_trained):
        assert np.any(gradient), parameter.name
    reached = [gradient is not None for gradient in of_outputs]
    assert reached == [place >= lowest for place in range(3)]
