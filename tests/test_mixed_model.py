"""Rows of many tasks in one batch: each gets what its task alone computes."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from adapter_bert.answering import mixed_hooks, mixed_model
from adapter_bert.answering.mixed_model import MixedModel
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Kernel
from adapter_bert.methods.registry import parse
from adapter_bert.tasks import task_model
from adapter_bert.tasks.squad import SpanHead
from adapter_bert.tasks.text_classification import ClassificationHead
from adapter_bert.tasks.text_regression import RegressionHead

pytestmark = pytest.mark.older_stack

HEADS = (partial(ClassificationHead, 3), RegressionHead, partial(SpanHead, 4))
TOKENS = 9


class Mixed:
    """Tasks of some methods, their values, and what computes them mixed."""

    def __init__(self, config, methods, each=2, heads=HEADS):
        """Makes `each` tasks of each method, with heads in turn."""
        self.heads = heads
        self.rng = np.random.default_rng(0)
        self.config = config
        self.bert = {
            name: tf.Variable(self.draw(shape))
            for name, shape in encoder.list_variables(config).items()
        }
        methods = [parse(text) for text in methods]
        tables = {
            (method, number): task_model.list_parameters(config, method, build)
            for method in methods
            for number, build in enumerate(heads)
        }
        self.tasks = []
        for number in range(each * len(methods)):
            method, head = methods[number % len(methods)], number % len(heads)
            values = {
                p.name: self.draw(p.shape)
                for p in tables[method, head].parameters
                if p.trained or p.is_added
            }
            self.tasks.append((method, head, values))
        self.head_names = [
            [p.name for p in table.parameters if p.group == "head"]
            for table in (tables[methods[0], n] for n in range(len(heads)))
        ]
        self.function = self.make_function(methods)

    def draw(self, shape):
        return self.rng.normal(0.0, 0.3, shape).astype(np.float32)

    def make_function(self, methods):
        rows, places = {}, []
        trained = {n for _, _, v in self.tasks for n in v if n in self.bert}
        base = {name: self.bert[name].numpy() for name in trained}
        for name, value in base.items():
            rows[f"own/{name}"] = [value]

        def put(scope, names, values):
            for name in names:
                rows.setdefault(f"{scope}/{name}", []).append(values[name])
            return sum(place[0] == scope for place in noted)

        noted = []
        for number, (method, head, values) in enumerate(self.tasks, 1):
            kind = methods.index(method)
            names = method.variables(self.config)
            row = put(f"kind_{kind}", names, values)
            head_row = put(f"head_{head}", self.head_names[head], values)
            noted += [(f"kind_{kind}",), (f"head_{head}",)]
            put("own", base, {**base, **values})
            places.append([kind, row, head, head_row, number])
        tables = {
            name: tf.Variable(np.stack(values), shape=[None, *values[0].shape])
            for name, values in rows.items()
        }
        self.model = model = MixedModel(
            self.config,
            tuple(methods),
            tuple(self.heads),
            self.bert,
            tables,
            tf.Variable(np.int32(places)),
        )

        @tf.function(input_signature=[mixed_model.FEATURES], autograph=False)
        def compute(features):
            context = Context(features["input_mask"], share_layers=True)
            return model(features, context)

        return compute

    def texts(self, count):
        shape = (count, TOKENS)
        lengths = self.rng.integers(3, TOKENS + 1, (count, 1))
        return {
            "input_ids": self.rng.integers(1, 20, shape).astype(np.int32),
            "input_mask": np.int32(np.arange(TOKENS) < lengths),
            "segment_ids": self.rng.integers(0, 2, shape).astype(np.int32),
        }

    def alone(self, task, features):
        """What the model of a single task computes."""
        method, head, values = self.tasks[task]

        def create(name, shape, initializer):
            value = values.get(name)
            return self.bert[name] if value is None else tf.constant(value)

        model = task_model.TaskModel(
            self.config, method, self.heads[head], create
        )
        return model(features, Context(tf.constant(features["input_mask"])))

    def check(self, tasks):
        """Compares every question's answer, of tasks int [N, K]."""
        tasks = np.asarray(tasks, np.int32)
        texts = self.texts(len(tasks))
        # Numbers that are not the places.
        numbers = self.rng.permutation(tasks.size).reshape(tasks.shape)
        outputs = self.function(
            {**texts, "task": tasks, "question": numbers.astype(np.int32)}
        )
        for place, task in np.ndenumerate(tasks):
            row = {k: v[place[0] : place[0] + 1] for k, v in texts.items()}
            head = self.tasks[task][1]
            questions = list(outputs[f"head_{head}/question"].numpy())
            where = questions.index(numbers[place])
            for name, expected in self.alone(task, row).items():
                np.testing.assert_allclose(
                    outputs[f"head_{head}/{name}"][where],
                    expected[0],
                    atol=1e-5,
                    err_msg=f"{self.tasks[task][0]}: {name}",
                )
        rows = [v for k, v in outputs.items() if k.endswith("/question")]
        assert sorted(np.concatenate(rows)) == list(range(tasks.size))


def test_a_few_kinds_mixed(tiny_config):
    mixed = Mixed(tiny_config, ["houlsby(size=4)", "lora(rank=2)"], each=3)
    mixed.check([[number] for number in (3, 0, 5, 1, 4, 2, 0)])


def test_each_row_has_its_own_update_of_the_pooler(tiny_config):
    """Next to rows whose pooler's bias, or nothing of it, was trained."""
    methods = [
        "lora(rank=2, targets='query,pooler')",
        "dora(rank=2, targets='pooler')",
        "vera(rank=3, targets='key,pooler')",
        "stack({'a': lora(2, targets='pooler')}, lora(3, targets='pooler'))",
        "bitfit",
        "pals(6, 2)",
    ]
    mixed = Mixed(tiny_config, methods, heads=HEADS[:2])
    tasks = mixed.rng.permutation(len(mixed.tasks))
    mixed.check([[task] for task in tasks])


def test_what_no_task_changes_is_computed_once_for_a_text(
    tiny_config, monkeypatch
):
    method = "houlsby(size=4, layers='1', layer_norms=false)"
    mixed = Mixed(tiny_config, [method], each=len(HEADS))
    assert mixed.model.untouched_layers == 1
    computed = []
    run_layers = encoder.Bert.run_layers

    def note(bert, hidden, layers, context):
        computed.append(list(layers))
        return run_layers(bert, hidden, layers, context)

    monkeypatch.setattr(encoder.Bert, "run_layers", note)
    mixed.check([[0, 1, 2], [1, 1, 0]])
    # The mixed model's, then the models' of single tasks.
    assert computed == [[0], [1], *[[0, 1]] * 6]


def test_what_takes_rows_is_not_vectorized(tiny_config, monkeypatch):
    def fail(*arguments):
        raise AssertionError("vectorized")

    methods = ["houlsby(size=4)", "lora(rank=2)", "ia3", "mad_x(4, 3)"]
    monkeypatch.setattr(mixed_hooks, "map_rows", fail)
    Mixed(tiny_config, methods, each=1).check([[0], [2], [1], [3]])
    with pytest.raises(AssertionError, match="vectorized"):
        Mixed(tiny_config, ["pals"], each=1).check([[0]])


@pytest.mark.gate
@pytest.mark.parametrize(
    ("methods", "heads", "tokens"),
    [
        (["houlsby(size=4)", "lora(rank=2)"], HEADS[:2], 1),
        # Spans are of all tokens, and so is what PALs attend to.
        (["houlsby(size=4)", "lora(rank=2)"], HEADS, TOKENS),
        (["houlsby(size=4)", "pals(6, 2)"], HEADS[:2], TOKENS),
    ],
)
def test_a_last_layer_computes_no_more_than_is_read(
    tiny_config, monkeypatch, methods, heads, tokens
):
    shapes, answers = [], MixedModel._answers

    def note(self, bert, sequence_output, *arguments):
        shapes.append(sequence_output.shape)
        return answers(self, bert, sequence_output, *arguments)

    monkeypatch.setattr(MixedModel, "_answers", note)
    mixed = Mixed(tiny_config, methods, heads=heads)
    tasks = np.int32([[0], [1], [1], [0]])
    mixed.check(tasks)
    # Traced for texts of one length, which tells the shapes.
    shapes.clear()
    of_one_length = tf.function(mixed.function.python_function, autograph=False)
    of_one_length({**mixed.texts(4), "task": tasks, "question": tasks})
    assert [shape[1] for shape in shapes] == [tokens]


def test_one_product_of_berts_for_the_rows_of_all_kinds(tiny_config):
    """But of rows that a method changes before it, each kind has its own."""
    counts = [1, 2]

    methods = [parse("lora(rank=2)"), parse("ia3")]
    values = {
        f"kind_{kind}/{name}": tf.ones([counts[kind], *one.shape])
        for kind, method in enumerate(methods)
        for name, one in method.variables(tiny_config).items()
    }
    hooks = mixed_hooks.MixedHooks(methods, tiny_config, values)
    inputs = tf.ones([3, 4, tiny_config.hidden_size])
    context = Context(
        tf.ones([3, 4], tf.int32), handed_on={mixed_hooks.COUNTS: counts}
    )

    def count_of(name, inputs):
        seen = []
        hooks.project(
            f"bert/encoder/layer_0/{name}",
            inputs,
            Kernel(lambda x: seen.append(len(x)) or x, None),
            context,
        )
        return seen

    assert count_of("attention/self/value", inputs) == [3]
    inner = tf.ones([3, 4, tiny_config.intermediate_size])
    # (IA)^3 rescales what the last kernel reads.
    assert sorted(count_of("output/dense", inner)) == [2, 3]


def test_untouched_layers(tiny_config):
    config = tiny_config

    def untouched(method, trained=()):
        tables = dict.fromkeys(f"own/{name}" for name in trained)
        model = MixedModel(config, (parse(method),), (), {}, tables, None)
        return model.untouched_layers

    assert untouched("lora") == 0
    assert untouched("lora(targets='pooler')") == config.num_hidden_layers
    assert untouched("pfeiffer(layers='1')") == 1
    assert untouched("head") == config.num_hidden_layers
    assert untouched("head", ["bert/pooler/dense/bias"]) == 2
    assert untouched("pals") is None
    assert untouched("mad_x(layers='1')") is None
    assert untouched("head", ["bert/embeddings/LayerNorm/beta"]) is None
