"""What all compositions share: whose wish reaches which variable."""

from dataclasses import replace

import numpy as np
import pytest
import refusals
import tensorflow as tf
from engine_jobs import (
    CLASSIFICATION,
    LENGTH,
    make_job,
    make_rows,
    new_engine,
    train,
)
from numpy.random import default_rng
from numpy.testing import assert_allclose
from tiny_model import TinyModel, table_of

from adapter_bert.bert.hooks import Kernel
from adapter_bert.methods.registry import parse
from adapter_bert.optimization import WEIGHT_DECAY

KERNEL = "bert/encoder/layer_0/intermediate/dense/kernel"
ADAPTER = "bert/encoder/layer_0/output/adapters/weights1"
FUSION = "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=4)}, robust=true)"


def test_each_part_decides_on_its_own_variables_alone(tiny_config):
    recipe = table_of(tiny_config, "stack(lt_sft, pfeiffer(size=4))").recipe
    assert recipe.decay_of(KERNEL) == 0
    assert recipe.decay_of(ADAPTER) == WEIGHT_DECAY
    # `lt_sft` alone speaks for the head as well.
    assert recipe.decay_of("output_weights") == WEIGHT_DECAY
    alone = table_of(tiny_config, "stack(lt_sft)").recipe
    assert alone.decay_of("output_weights") == 0


def test_gates_learn_faster_but_not_what_is_beside_them(tiny_config):
    method = parse("stack(diff_pruning(gate_rate=7.0), lora(rank=2))")
    recipe = table_of(tiny_config, method.first_phase).recipe
    assert recipe.rates[f"diff_pruning/{KERNEL}/gate"] == 7
    assert {name.rpartition("/")[2] for name in recipe.rates} == {
        "gate",
        "group",
    }


def test_of_two_parts_that_train_the_same_each_is_heard(tiny_config):
    recipe = table_of(tiny_config, "stack(bitfit, houlsby(size=4))").recipe
    assert recipe.decay_of(ADAPTER) == WEIGHT_DECAY
    assert recipe.decay_of("bert/embeddings/LayerNorm/beta") == 0


# Virtual tokens of a prompt lie behind a text's last ones.
BEHIND = "stack({}, {})", "stack({{'a': {}}}, {{'b': stack({})}})"
NEVER_MET = "no two parts have an adapter"


@pytest.mark.parametrize(
    "text, parts",
    [
        *(
            (
                f"stack({other}, lt_sft)",
                ["lt_sft chooses", f"but {other} trains"],
            )
            for other in ("houlsby", "full", "bitfit", "layernorm")
        ),
        ("average(a, b, scale=-0.5)", ["scale is -0.5", "positive"]),
        ("average(a, b, weights='1,x')", ["'1,x'", "2 positive numbers"]),
        ("average(a, full)", ["average is made of trained adapters alone"]),
        ("fusion(a, b, penalty=-1)", ["penalty is -1.0, expected 0.0 to inf"]),
        ("fusion({'a': pfeiffer, 'b': pfeiffer}, first=2)", ["layers 0 to 1"]),
        (
            "union(lora, {'b': pfeiffer})",
            ["union is made of methods alone", "b"],
        ),
        ("union(pfeiffer(layers='1'), parallel)", ["train the same variable"]),
        ("stack(a, lora, a)", ["'a' is no name, or is there twice"]),
        ("fusion(sst-2, rte)", ["quotation marks", "stack('sst-2'"]),
        ("mam(size=3)", ["mam takes no arguments", "union"]),
        ("unipelt(size=3)", ["unipelt takes no arguments", "union"]),
        (
            "fusion({'a': pfeiffer(layers='0'), 'b': pfeiffer(layers='1')})",
            ["from layer 0", NEVER_MET],
        ),
        (
            "fusion({'a': pfeiffer(layers='0'), 'b': pfeiffer(layers='0')}, "
            "first=1, robust=true)",
            ["from layer 1", NEVER_MET],
        ),
        *(
            (f"average({{'s': stack({{'a': {part}}}, ia3)}})", ["has no mean"])
            for part in ("prefix(length=3)", "mad_x(4, 4)")
        ),
        *(
            (text.format("loreft(suffix=1)", "prompt"), ["suffix=0"])
            for text in BEHIND
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(tiny_config, text, parts):
    refusals.check(lambda: parse(text).check(tiny_config), *parts)


@pytest.mark.parametrize(
    "text",
    [
        "stack(lt_sft, pfeiffer, lora)",
        "stack({'a': houlsby}, lt_sft)",
        "union(pfeiffer(layers='1'), parallel(layers='0'))",
        "average({'s': stack({'a': pfeiffer}, pfeiffer), 't': pfeiffer})",
        *(text.format("loreft", "prompt") for text in BEHIND),
    ],
)
def test_other_parts_do(tiny_config, text):
    parse(text).check(tiny_config)


def test_parts_drop_no_layers_at_random():
    """Frozen ones do not, since they never train; fusions look at it."""
    method = parse(f"stack({{'f': {FUSION}}}, adapterdrop(robust=true))")
    fusion = FUSION.replace(", robust=true", "")
    drop = "adapterdrop(robust=true)"
    assert method.as_part == parse(f"stack({{'f': {fusion}}}, {drop})")


@pytest.mark.parametrize("over", ["houlsby", "pfeiffer"])
def test_a_robust_adapter_is_a_part_as_it_is_alone(tiny_config, over):
    """Layers below `first` have no adapters."""
    robust = parse(f"adapterdrop(first=1, over='{over}', size=4, robust=True)")
    alone = TinyModel(tiny_config, robust)
    alone.shake()
    mean = TinyModel(tiny_config, f"average({{'a': {robust.as_part}}})")
    for name, variable in mean.variables.items():
        original = name.removeprefix("parts.a/")
        changed = original.removeprefix("changes/")
        if changed != original and changed in alone.variables:
            variable.assign(alone.variables[changed] - mean.variables[changed])
        elif original in alone.variables and original != name:
            variable.assign(alone.variables[original])
        elif not name.startswith("bert/"):
            variable.assign(alone.variables[name])
    assert_allclose(mean.logits(), alone.logits(), atol=1e-5)


def test_a_trained_adapter_adds_no_penalty(tiny_config):
    tiny = TinyModel(tiny_config, f"stack({{'f': {FUSION}}}, pfeiffer)")
    assert tiny.model.bert.hooks.penalty(tiny.context(True)) is None
    assert "project" not in tiny.model.bert.hooks.places
    trained = TinyModel(tiny_config, FUSION)
    assert trained.model.bert.hooks.penalty(trained.context(True)) is not None


def test_a_mean_has_what_the_parts_of_parts_change(tiny_config):
    method = parse(
        "average({'s': average({'n': bitfit}), 't': bitfit}, weights='1,3')"
    )
    tiny = TinyModel(tiny_config, method)
    name = "bert/encoder/layer_0/output/dense/bias"
    variables = tiny.variables
    variables["parts.s/parts.n/changes/" + name].assign_add(tf.ones([16]))
    variables["parts.t/changes/" + name].assign_add(2 * tf.ones([16]))
    value = tiny.model.bert.hooks.parameter(
        name, variables[name], tiny.context()
    )
    assert_allclose(
        value - variables[name], np.full(16, 0.25 + 0.75 * 2), rtol=1e-6
    )


def test_a_mean_is_of_what_each_part_makes_of_its_own_inputs(tiny_config):
    method = parse("average({'a': ia3, 'b': lora(rank=2)}, weights='1,3')")
    tiny = TinyModel(tiny_config, method)
    name = "bert/encoder/layer_0/output/dense"
    tiny.variables[f"parts.a/{name}/ia3_scale"].assign(5 * tf.ones([32]))
    projected = tiny.model.bert.hooks.project(
        name,
        tf.ones([2, 3, 32]),
        Kernel(lambda x: 2 * x + 1, None),
        tiny.context(),
    )
    # Only `ia3` scales what this kernel reads.
    expected = 0.25 * (2 * 5 + 1) + 0.75 * (2 + 1)
    assert_allclose(projected, np.full([2, 3, 32], expected), rtol=1e-6)


@pytest.mark.parametrize(
    "parts",
    [
        "{'a': pfeiffer, 'b': lora}",
        "{'a': pfeiffer, 'b': parallel}",
        "{'a': bitfit, 'b': bitfit}",
        "{'a': houlsby, 'b': houlsby}",
        "{'a': bapna, 'b': bapna}",
    ],
)
def test_a_scale_is_for_a_mean_of_one_kind_of_outputs(tiny_config, parts):
    parse(f"average({parts})").check(tiny_config)
    refusals.check(
        lambda: parse(f"average({parts}, scale=0.5)").check(tiny_config),
        "with scale=0.5",
    )


def test_the_first_part_that_is_trained_says_the_rate():
    assert parse("stack({'a': pfeiffer}, lora)").learning_rate == 5e-4
    # A head alone has the rate of `head`.
    assert parse("stack({'a': pfeiffer})").learning_rate == 1e-3


def test_parts_of_a_union_do_not_read_one_another(tiny_config):
    """As parts of a stack do."""
    parts = "compacter(size=4, n=2), pfeiffer(size=4)"
    added = {}
    rng = default_rng(5)
    x, f = tf.constant(rng.normal(size=(2, 4, 9, 16)), tf.float32)
    for kind in ("union", "stack"):
        tiny = TinyModel(tiny_config, f"{kind}({parts})")
        tiny.shake()
        hooks = tiny.model.bert.hooks
        arguments = 1, "ffn", x, f, lambda h: h, tiny.context()
        alone = [part.before_norm(*arguments) for part in hooks.parts]
        added[kind] = hooks.before_norm(*arguments)
    assert_allclose(added["union"], alone[0] + alone[1], rtol=1e-6)
    assert abs(added["stack"] - added["union"]).numpy().max() > 0.1


def test_where_one_adapter_is_alone_it_is_fused_too(tiny_config):
    method = parse(
        "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=4, layers='1')})"
    )
    method.check(tiny_config)
    assert method.places(tiny_config) == [(0, "ffn"), (1, "ffn")]
    tiny = TinyModel(tiny_config, method)
    rng = default_rng(5)
    for p in tiny.table.parameters:
        if "adapters" in p.name or "/fusion/" in p.name:
            tiny.variables[p.name].assign_add(rng.normal(size=p.shape))
    x, context = (
        tf.constant(rng.normal(size=(4, 9, 16)), tf.float32),
        tiny.context(),
    )
    hooks = tiny.model.bert.hooks
    fused = hooks.before_norm(0, "ffn", x, x, lambda h: h, context)
    alone = hooks.parts[0].before_norm(0, "ffn", x, x, lambda h: h, context)
    value = tiny.variables[
        "bert/encoder/layer_0/output/fusion/value/kernel"
    ].numpy()
    assert_allclose(fused, alone @ value, rtol=1e-4, atol=1e-4)


def test_the_mean_of_a_stack_with_itself_is_the_stack(tiny_config):
    """Whatever its parts do: add, scale, or change BERT itself."""
    stack = "stack({'a': bitfit, 'b': lora(rank=2)}, pfeiffer(size=4))"
    alone = TinyModel(tiny_config, f"average({{'s': {stack}}})")
    alone.shake(frozen=True)
    text = f"average({{'s': {stack}, 't': {stack}}})"
    both = TinyModel(tiny_config, text)
    for name, variable in both.variables.items():
        variable.assign(alone.variables[name.replace("parts.t/", "parts.s/")])
    assert_allclose(both.logits(), alone.logits(), atol=1e-5)


def test_a_mean_leaves_alone_what_no_part_changes(tiny_config):
    """Nor do thirds of bfloat16, whose sum is 1.002, scale what BERT gives."""
    parts = ", ".join(f"'{name}': lora(rank=2)" for name in "abc")
    tiny = TinyModel(tiny_config, f"average({{{parts}}})")
    context = replace(tiny.context(), dtype=tf.bfloat16)
    x = tf.constant(default_rng(0).normal(size=(2, 3, 16)), tf.bfloat16)
    # At the start of an update it is zero; keys have none.
    for kernel in ("query", "key"):
        name = f"bert/encoder/layer_0/attention/self/{kernel}"
        dense = Kernel(tf.identity, None)
        mean = tiny.model.bert.hooks.project(name, x, dense, context)
        assert np.array_equal(mean, x)


def test_each_of_two_loras_acts_on_its_own_kernels(tiny_config):
    """With a scale of its own: the second one's is twice the first one's."""
    one = TinyModel(tiny_config, "lora(rank=2, targets='query,value')")
    one.shake()
    text = "stack(lora(2, targets='query'), lora(2, 16, targets='value'))"
    two = TinyModel(tiny_config, text)
    for name, variable in two.variables.items():
        half = 0.5 if name.endswith("value/lora_b") else 1.0
        variable.assign(half * one.variables[name])
    assert_allclose(two.logits(), one.logits(), atol=1e-5)


def test_a_trained_adapter_drops_nothing_at_random(tiny_config):
    """In training it computes what it does in prediction."""
    name = "bert/encoder/layer_0/attention/self/query"
    part = "lora(rank=2, dropout=0.5)"
    for text, is_same in (
        (f"stack({{'a': {part}}}, pfeiffer(size=4))", True),
        (f"stack({part}, pfeiffer(size=4))", False),
    ):
        tiny = TinyModel(tiny_config, text)
        tiny.shake(frozen=True)
        projected = [
            tiny.model.bert.hooks.project(
                name,
                tf.ones([2, 3, 16]),
                Kernel(lambda x: 2 * x, None),
                tiny.context(training),
            )
            for training in (False, True)
        ]
        assert np.array_equal(*projected) == is_same


@pytest.mark.parametrize(
    "text",
    [
        "stack({'a': houlsby(size=4), 'b': bitfit}, lora(rank=2))",
        "average({'a': bitfit, 'b': layernorm}, weights='1,3')",
        "average({'a': lora(rank=2), 'b': lora(rank=3)}, scale=0.5)",
        "stack('a', {'b': bitfit}, 'c')",
        f"stack('a', 'b', {', '.join(['lora'] * 98)})",
        "fusion('a', 'b', 'sst-2')",
    ],
)
def test_a_composition_is_read_as_it_is_written(text):
    method = parse(text)
    assert parse(str(method)) == method
    assert [part.name for part in method.parts][:2] == ["a", "b"]


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "text, changes, tolerance",
    [
        (FUSION, {"parts": 4}, 1e-5),
        (FUSION, {"compute_dtype": "bfloat16"}, 2e-2),
        (
            "stack({'a': layernorm, 'b': lora(rank=2)}, pals(6, 2))",
            {"use_xla": True, "length": LENGTH},
            1e-4,
        ),
    ],
)
def test_parts_of_a_batch_and_other_arithmetic_train_the_same(
    steady_config, steady, folders, text, changes, tolerance
):
    losses = []
    for number, more in enumerate(({}, changes)):
        job = make_job(steady_config, folders(str(number)), text, **more)
        # Of no part zeros.
        values = {
            name: lambda draw=draw: draw() + np.float32(0.02)
            for name, draw in job.initial_values.items()
        }
        job = replace(job, initial_values=values)
        losses.append(train(new_engine(), job, make_rows(CLASSIFICATION)))
    assert_allclose(*losses, atol=tolerance)
