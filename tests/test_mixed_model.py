"""Rows of many tasks in one batch: each gets what its task alone computes.

All methods are mixed by test_method_contract.py, all kinds of tasks by
test_one_row_all_ways.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from tiny_artifacts import CLASSIFICATION

from adapter_bert.answering import mixed_hooks
from adapter_bert.answering.mixed_model import MixedModel
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Kernel
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.from_description import restore_task

pytestmark = pytest.mark.older_stack

TASKS = [
    restore_task(task, {}, "test")
    for task in (
        CLASSIFICATION,
        {"name": "custom", "regression": True, "pairs": False},
        {"name": "squad"},
    )
]
TOKENS = 9


class Mixed:
    """Tasks of some methods, their values, and what computes them mixed."""

    def __init__(self, bert, methods, each=2, tasks=TASKS):
        """Makes `each` tasks of each method, of the kinds in turn."""
        self.rng = np.random.default_rng(0)
        self.tables, self.tasks = MixedBert(bert), []
        for number in range(each * len(methods)):
            method = parse(methods[number % len(methods)])
            self.put(bert.kind(method, tasks[number % len(tasks)]))

    def put(self, kind):
        values = {
            p.name: tf.constant(self.rng.normal(0.0, 0.3, p.shape), "float")
            for p in kind.table.parameters
            if p.trained or p.is_added
        }
        self.tasks.append((kind, values, self.tables.put(kind, values)))

    def texts(self, count):
        shape = (count, TOKENS)
        lengths = self.rng.integers(3, TOKENS + 1, (count, 1))
        return {
            "input_ids": self.rng.integers(1, 20, shape).astype(np.int32),
            "input_mask": np.int32(np.arange(TOKENS) < lengths),
            "segment_ids": self.rng.integers(0, 2, shape).astype(np.int32),
        }

    def check(self, tasks):
        """Compares every question's answer, of tasks int [N, K]."""
        tasks = np.asarray(tasks, np.int32)
        texts = self.texts(len(tasks))
        # Numbers that are not the places.
        numbers = self.rng.permutation(tasks.size).reshape(tasks.shape)
        questions = {"task": tasks, "question": numbers.astype(np.int32)}
        least = max(place.least_model for _, _, place in self.tasks)
        outputs = self.tables.compute({**texts, **questions}, least)
        for place, task in np.ndenumerate(tasks):
            row = {k: v[place[0] : place[0] + 1] for k, v in texts.items()}
            kind, values, of_task = self.tasks[task]
            scope = f"head_{of_task.head}/"
            where = list(outputs[f"{scope}question"]).index(numbers[place])
            alone = kind.compute(values, {**row, "row": np.int32([0])})
            for name, expected in alone.items():
                np.testing.assert_allclose(
                    outputs[f"{scope}{name}"][where],
                    expected[0],
                    atol=1e-5,
                    err_msg=f"{kind.method}: {name}",
                )
        rows = [v for k, v in outputs.items() if k.endswith("/question")]
        assert sorted(np.concatenate(rows)) == list(range(tasks.size))


@pytest.mark.gate
def test_each_row_has_its_own_update_of_the_pooler(bert):
    """Next to rows whose pooler's bias, or nothing of it, was trained."""
    methods = [
        "lora(rank=2, targets='query,pooler')",
        "dora(rank=2, targets='pooler')",
        "vera(rank=3, targets='key,pooler')",
        "stack({'a': lora(2, targets='pooler')}, lora(3, targets='pooler'))",
        "bitfit",
        "pals(6, 2)",
    ]
    mixed = Mixed(bert, methods, tasks=TASKS[:2])
    tasks = mixed.rng.permutation(len(mixed.tasks))
    mixed.check([[task] for task in tasks])


@pytest.mark.gate
def test_what_no_task_changes_is_computed_once_for_a_text(bert, monkeypatch):
    method = "houlsby(size=4, layers='1', layer_norms=false)"
    mixed = Mixed(bert, [method], each=len(TASKS))
    assert mixed.tables.model().untouched_layers == 1
    computed = []
    run_layers = encoder.Bert.run_layers

    def note(bert, hidden, layers, context):
        computed.append(list(layers))
        return run_layers(bert, hidden, layers, context)

    monkeypatch.setattr(encoder.Bert, "run_layers", note)
    mixed.check([[0, 1, 2], [1, 1, 0]])
    # The mixed model's, then the models' of single tasks.
    assert computed[:3] == [[0], [1], [0, 1]]


def test_what_cannot_be_traced_holds_up_no_task_of_another_form(
    bert, monkeypatch
):
    def fail(*arguments):
        raise AssertionError("traced")

    mixed = Mixed(bert, ["lora(rank=2)"], each=1)
    mixed.check([[0]])
    with monkeypatch.context() as patched:
        patched.setattr(mixed_hooks, "map_rows", fail)
        mixed.put(bert.kind(parse("pals"), TASKS[0]))
        with pytest.raises(AssertionError, match="traced"):
            mixed.check([[1]])
        del mixed.tasks[1]
        mixed.put(bert.kind(parse("lora(rank=2)"), TASKS[0]))
        mixed.check([[1]])


def test_what_takes_rows_is_not_vectorized(bert, monkeypatch):
    def fail(*arguments):
        raise AssertionError("vectorized")

    methods = ["houlsby(size=4)", "lora(rank=2)", "ia3", "mad_x(4, 3)"]
    monkeypatch.setattr(mixed_hooks, "map_rows", fail)
    Mixed(bert, methods, each=1).check([[0], [2], [1], [3]])
    with pytest.raises(AssertionError, match="vectorized"):
        Mixed(bert, ["pals"], each=1).check([[0]])


@pytest.mark.gate
@pytest.mark.parametrize(
    ("methods", "tasks", "tokens"),
    [
        (["houlsby(size=4)", "lora(rank=2)"], TASKS[:2], 1),
        # Spans are of all tokens, and so is what PALs attend to.
        (["houlsby(size=4)", "lora(rank=2)"], TASKS, TOKENS),
        (["houlsby(size=4)", "pals(6, 2)"], TASKS[:2], TOKENS),
    ],
)
def test_a_last_layer_computes_no_more_than_is_read(
    bert, monkeypatch, methods, tasks, tokens
):
    mixed = Mixed(bert, methods, tasks=tasks)
    numbers = np.int32([[0], [1], [1], [0]])
    mixed.check(numbers)
    shapes, answers = [], MixedModel._answers

    def note(self, bert, sequence_output, *arguments):
        shapes.append(sequence_output.shape)
        return answers(self, bert, sequence_output, *arguments)

    monkeypatch.setattr(MixedModel, "_answers", note)
    features = {**mixed.texts(4), "task": numbers, "question": numbers}
    mask = features["input_mask"]
    mixed.tables.model()(features, Context(tf.constant(mask)))
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
