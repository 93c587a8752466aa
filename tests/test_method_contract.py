"""Every hook acts in batches of many tasks and in exports, or is refused."""

import dataclasses
import typing

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import SENTENCES, open_bert, scores
from numpy.testing import assert_allclose
from test_methods import METHOD_TEXTS
from tiny_artifacts import make_artifact, outputs_of
from tiny_model import table_of

from adapter_bert.answering.predictor import Predictor
from adapter_bert.bert.hooks import PLACES, Hooks, layer_of
from adapter_bert.data.tokenization import make_row
from adapter_bert.errors import UserError
from adapter_bert.graph.text_model import TextModel
from adapter_bert.methods.base import Declared, TuningMethod
from adapter_bert.methods.houlsby import AdapterHooks
from adapter_bert.methods.registry import METHODS, parse
from adapter_bert.training.frozen_outputs import lowest_layer

pytestmark = pytest.mark.older_stack

TEXTS = [text for text, _ in SENTENCES[:3]]


class OneHook(Hooks):
    """What the hooks of the tests have in common: a number for each layer."""

    def __init__(self, values):
        self.values = values

    def scaled(self, x, layer=None):
        """With the layer's values, or without any."""
        if not self.values:
            return 1.5 * x
        value = tf.convert_to_tensor(self.values[layer])
        # Of rows that have values of their own one by one.
        mean = tf.reduce_mean(value, axis=-1)
        mean = tf.reshape(mean, [-1, *[1] * (x.shape.rank - 1)])
        return x * (1.0 + tf.cast(mean, x.dtype))


class Lengthen(OneHook):
    """A virtual token that is a scaled first one."""

    def lengthen(self, hidden, context):
        mask = context.input_mask
        return (
            tf.concat([hidden, 3.0 * self.scaled(hidden[:, :1])], axis=1),
            tf.concat([mask, mask[:, :1]], axis=1),
        )


class Begin(OneHook):
    """Two hooks; the second reads values of the first."""

    def begin(self, context):
        return {"contract": self.scaled(tf.ones([1, 1]))}

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        made = tf.reshape(context.handed_on["contract"], [-1, 1, 1])
        return inputs * tf.cast(made, inputs.dtype)


class BeginRows(Begin):
    takes_rows = True


class LayerInput(OneHook):
    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        return self.scaled(context.layer_input, layer) - inputs


class AdapterAndMore(AdapterHooks):
    """What a fusion takes, but for another hook."""

    def __init__(self, values):
        self.values, self.scopes = values, {(0, "ffn"): ""}

    def after_norm(self, layer, site, hidden, context):
        return hidden


def one_hook(name, acts):
    """A class of hooks that defines one of them."""
    return type(name, (OneHook,), {name: acts})


def parameter(self, name, variable, context):
    x = tf.convert_to_tensor(variable)
    if layer_of(name) is None:
        return x
    return self.scaled(x[tf.newaxis], layer_of(name))[0]


# Heads of tasks that answer texts ask for none of these.
IDLE = {
    "vocabulary": lambda self, hidden, context: self.scaled(hidden),
    "penalty": lambda self, context: tf.constant(1.0),
    "prepare": lambda self, context: {"contract": tf.constant(1.0)},
    "observe": lambda self, shown, context: {
        "contract": tf.cast(context.input_mask, tf.float32)
    },
}
ACTING = {
    "words": lambda self, ids, embed, context: self.scaled(embed(ids)),
    "embeddings": lambda self, hidden, context: self.scaled(hidden),
    "parameter": parameter,
    "project": lambda self, name, inputs, dense, context: self.scaled(
        dense(inputs) - dense.read("bias"), layer_of(name)
    ),
    "key_value": lambda self, layer, key, value, bias, context: (
        self.scaled(key, layer),
        value,
        bias,
    ),
    "before_norm": lambda self, layer, site, inputs, *_: self.scaled(
        inputs, layer
    ),
    "after_norm": lambda self, layer, site, hidden, context: self.scaled(
        hidden, layer
    ),
}
HOOKS = {
    **{name: one_hook(name, acts) for name, acts in {**ACTING, **IDLE}.items()},
    "lengthen": Lengthen,
    "begin": Begin,
    "begin_rows": BeginRows,
    "layer_input": LayerInput,
}


@dataclasses.dataclass(frozen=True)
class Contract(TuningMethod):
    """One hook, with variables or without any."""

    name: typing.ClassVar[str] = "contract"
    learning_rate: typing.ClassVar[float] = 1e-3
    hook: str = "embeddings"
    constant: bool = False

    def variables(self, config, pooler=True):
        """A value for each layer, and one for none."""
        scopes = ["embeddings"]
        for layer in range(config.num_hidden_layers):
            scopes.append(f"encoder/layer_{layer}")
        return {
            f"bert/{scope}/contract": Declared((3,), lambda rng, shape: 0)
            for scope in scopes
            if not self.constant
        }

    def hooks(self, config, values):
        return HOOKS[self.hook](
            {
                layer_of(name): value
                for name, value in values.items()
                if name.endswith("/contract")
            }
        )


OWN_TEXTS = [
    f"contract(hook='{hook}', constant={constant})"
    for hook in HOOKS
    # Some do nothing when a text is answered.
    for constant in (False, True)
    if (hook not in IDLE if not constant else hook in (*PLACES, *IDLE))
]
# Of methods with other arguments than those of the suite.
OWN_TEXTS += [
    "pfeiffer(size=2, sizes='1:3', gating=true)",
    "union(lora(2, gating=true), prefix(3, false, gating=true))",
    "loreft(2, orthogonal=false, suffix=1)",
]
# Compositions hand hooks on, some of them several times.
OWN_TEXTS += [
    "stack({'a': contract('before_norm', true)}, pfeiffer(size=2))",
    "stack({'a': contract('parameter')}, pfeiffer(size=2))",
    "average({'a': stack({'b': contract('project', true)})})",
    "average({'a': stack({'b': contract('parameter', true)})})",
]


@pytest.fixture(autouse=True, scope="module")
def contract():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "contract", Contract)
        yield


def test_there_is_a_method_for_each_hook():
    assert set(PLACES) < set(HOOKS)
    public = {name for name in vars(Hooks) if not name.startswith("_")}
    others = {"alike", "takes_rows", "by_token", "by_values"}
    others |= {"layer_kind", "places"}
    assert public - others <= set(HOOKS)


def check_alike(tiny_bert, texts, folder):
    """Compares what each gives alone, in mixed batches and exported."""
    bert = open_bert(tiny_bert)
    mixed, alone = Predictor(bert), {}
    for number, text in enumerate(texts):
        place = folder / str(number)
        made = make_artifact(place, tiny_bert, text, seed=number)
        mixed.add(str(place), text)
        loaded = mixed.task(text)
        rows = [
            make_row(ids, None, loaded.tokenizer, loaded.max_seq_length)
            for ids in loaded.tokenizer.encode_ids(TEXTS)
        ]
        outputs = outputs_of(tiny_bert, *made, loaded.task, rows)
        logits = [one["logits"] for one in outputs]
        alone[text] = tf.nn.softmax(logits).numpy()
    answers = mixed(texts, TEXTS)
    for text in texts:
        served = scores([answer[text] for answer in answers])
        assert_allclose(served, alone[text], atol=1e-5, err_msg=f"{text} mixed")
    tasks = {text: mixed.task(text) for text in texts}
    able = {text: task for text, task in tasks.items() if task.can_mix}
    for text in set(tasks) - set(able):
        with pytest.raises(UserError, match="cannot be in a batch with others"):
            TextModel(bert, {text: tasks[text]}, 8)
    queries = [(text, row) for text in able for row in TEXTS]
    model = TextModel(bert, able, batch_size=8)
    served = model.serve(
        tf.constant([row for _, row in queries]),
        tf.constant([""] * len(queries)),
        tf.constant([text for text, _ in queries]),
    )
    expected = np.concatenate([alone[text] for text in able])
    assert_allclose(served["scores"], expected, atol=1e-5)
    return set(tasks) - set(able), alone


@pytest.mark.gate
def test_every_hook_acts_everywhere_or_is_refused(tiny_bert, tmp_path):
    refused, alone = check_alike(tiny_bert, OWN_TEXTS, tmp_path)
    assert refused == {text for text in OWN_TEXTS if "parameter" in text}
    # Of equal heads: so each of the hooks does something.
    plain = Predictor(open_bert(tiny_bert))
    for seed, text in enumerate(OWN_TEXTS):
        if "constant=True" in text and parse(text).hook in PLACES[:-1]:
            make_artifact(tmp_path / text, tiny_bert, "head", seed=seed)
            plain.add(str(tmp_path / text), text)
            assert abs(scores(plain(text, TEXTS)) - alone[text]).max() > 1e-4


@pytest.mark.gate
def test_every_registered_method_too(tiny_bert, tmp_path):
    texts = {text.split("(")[0]: text for text in reversed(METHOD_TEXTS)}
    # What is kept of a training with it is one of the others.
    del texts["per_task"]
    assert set(texts) == set(METHODS) - {"contract", "per_task"}
    refused, _ = check_alike(tiny_bert, list(texts.values()), tmp_path)
    assert refused == {
        texts[name]
        for name in ("full", "top_layers", "lt_sft", "diff_pruning", "average")
    }


@pytest.mark.parametrize(
    "text",
    [
        "fusion({'a': contract('adapter'), 'b': contract('adapter')})",
        *(
            f"average({{'a': contract('{hook}')}})"
            for hook in ("vocabulary", "key_value", "lengthen", "words")
        ),
        *(
            f"per_task(contract('{hook}'), tasks='a')"
            for hook in ("parameter", "penalty", "prepare")
        ),
    ],
)
def test_a_composition_that_hands_no_such_hook_on_refuses_it(
    text, tiny_config, monkeypatch
):
    monkeypatch.setitem(HOOKS, "adapter", AdapterAndMore)
    name = text.split("(")[0]
    refusals.check(lambda: table_of(tiny_config, text), f"{name}: ")


@pytest.mark.parametrize("hook", ["project", "penalty"])
def test_frozen_layers_are_plain_berts(tiny_config, hook):
    """What hooks without variables do in a layer is not known."""
    table = table_of(tiny_config, f"contract('{hook}', true)")
    assert lowest_layer(table, tiny_config.num_hidden_layers) == 0
