"""What all compositions share: whose wish reaches which variable."""

import numpy as np
import pytest
import tensorflow as tf
from tiny_model import TASK, TinyModel

from adapter_bert.bert.hooks import Kernel
from adapter_bert.errors import UserError
from adapter_bert.methods.base import changed_by
from adapter_bert.methods.registry import parse
from adapter_bert.optimization import WEIGHT_DECAY
from adapter_bert.tasks.task_model import list_parameters

KERNEL = "bert/encoder/layer_0/intermediate/dense/kernel"
ADAPTER = "bert/encoder/layer_0/output/adapters/weights1"
FUSION = "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=4)}, robust=true)"


def recipe_of(method, config):
    method = parse(method) if isinstance(method, str) else method
    return list_parameters(config, method, TASK.build_head).recipe


def test_each_part_decides_on_its_own_variables_alone(tiny_config):
    recipe = recipe_of("stack(lt_sft, pfeiffer(size=4))", tiny_config)
    assert recipe.decay_of(KERNEL) == 0
    assert recipe.decay_of(ADAPTER) == WEIGHT_DECAY
    # `lt_sft` alone speaks for the head as well.
    assert recipe.decay_of("output_weights") == WEIGHT_DECAY
    alone = recipe_of("stack(lt_sft)", tiny_config)
    assert alone.decay_of("output_weights") == 0


def test_gates_learn_faster_but_not_what_is_beside_them(tiny_config):
    method = parse("stack(diff_pruning(gate_rate=7.0), lora(rank=2))")
    recipe = recipe_of(method.first_phase, tiny_config)
    assert recipe.rates[f"diff_pruning/{KERNEL}/gate"] == 7
    assert {name.rpartition("/")[2] for name in recipe.rates} == {
        "gate",
        "group",
    }


def test_of_two_parts_that_train_the_same_each_is_heard(tiny_config):
    recipe = recipe_of("stack(bitfit, houlsby(size=4))", tiny_config)
    assert recipe.decay_of(ADAPTER) == WEIGHT_DECAY
    assert recipe.decay_of("bert/embeddings/LayerNorm/beta") == 0


@pytest.mark.parametrize("other", ["houlsby", "full", "bitfit", "layernorm"])
def test_few_changes_are_chosen_where_nobody_else_trains(tiny_config, other):
    words = f"lt_sft chooses .* but {other} trains"
    with pytest.raises(UserError, match=words) as caught:
        parse(f"stack({other}, lt_sft)").check(tiny_config)
    assert "\n" not in str(caught.value)


def test_few_changes_may_be_beside_what_is_added(tiny_config):
    parse("stack(lt_sft, pfeiffer, lora)").check(tiny_config)
    parse("stack({'a': houlsby}, lt_sft)").check(tiny_config)


def test_parts_drop_no_layers_at_random():
    method = parse(f"stack({{'f': {FUSION}}}, adapterdrop(robust=true))")
    fusion = FUSION.replace(", robust=true", "")
    assert method.as_part == parse(f"stack({{'f': {fusion}}}, houlsby)")


def test_a_trained_adapter_adds_no_penalty(tiny_config):
    tiny = TinyModel(tiny_config, parse(f"stack({{'f': {FUSION}}}, pfeiffer)"))
    assert tiny.model.bert.hooks.penalty(tiny.context(True)) is None
    trained = TinyModel(tiny_config, parse(FUSION))
    assert trained.model.bert.hooks.penalty(trained.context(True)) is not None


def test_a_mean_has_what_the_parts_of_parts_change(tiny_config):
    method = parse(
        "average({'s': average({'n': bitfit}), 't': bitfit}, weights='1,3')"
    )
    tiny = TinyModel(tiny_config, method)
    name = "bert/encoder/layer_0/output/dense/bias"
    found = tiny.variables
    found["parts.s/parts.n/changes/" + name].assign_add(tf.ones([16]))
    found["parts.t/changes/" + name].assign_add(2 * tf.ones([16]))
    value = tiny.model.bert.hooks.parameter(name, found[name], tiny.context())
    np.testing.assert_allclose(
        value - found[name], np.full(16, 0.25 + 0.75 * 2), rtol=1e-6
    )


def test_a_mean_is_of_what_each_part_makes_of_its_own_inputs(tiny_config):
    method = parse("average({'a': ia3, 'b': lora(rank=2)}, weights='1,3')")
    tiny = TinyModel(tiny_config, method)
    name = "bert/encoder/layer_0/output/dense"
    tiny.variables[f"parts.a/{name}/ia3_scale"].assign(5 * tf.ones([32]))
    found = tiny.model.bert.hooks.project(
        name,
        tf.ones([2, 3, 32]),
        Kernel(lambda x: 2 * x + 1, None),
        tiny.context(),
    )
    # Only `ia3` scales what this kernel reads.
    expected = 0.25 * (2 * 5 + 1) + 0.75 * (2 + 1)
    np.testing.assert_allclose(found, np.full([2, 3, 32], expected), rtol=1e-6)


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
    with pytest.raises(UserError, match="with scale=0.5 the parts are .* all"):
        parse(f"average({parts}, scale=0.5)").check(tiny_config)


@pytest.mark.parametrize("scale", ["0", "-0.5"])
def test_a_scale_is_positive(scale):
    with pytest.raises(UserError, match="scale is .*expected a positive num"):
        parse(f"average(a, b, scale={scale})")


def test_the_first_part_that_is_trained_says_the_rate():
    assert parse("stack({'a': pfeiffer}, lora)").learning_rate == 5e-4
    # A head alone has the rate of `head`.
    assert parse("stack({'a': pfeiffer})").learning_rate == 1e-3


def test_parts_of_a_union_do_not_read_one_another(tiny_config):
    """As parts of a stack do."""
    parts = "compacter(size=4, n=2), pfeiffer(size=4)"
    added = {}
    rng = np.random.default_rng(5)
    x, f = tf.constant(rng.normal(size=(2, 4, 9, 16)), tf.float32)
    for kind in ("union", "stack"):
        tiny = TinyModel(tiny_config, parse(f"{kind}({parts})"))
        tiny.shake()
        hooks = tiny.model.bert.hooks
        arguments = 1, "ffn", x, f, lambda h: h, tiny.context()
        alone = [part.before_norm(*arguments) for part in hooks.parts]
        added[kind] = hooks.before_norm(*arguments)
    np.testing.assert_allclose(added["union"], alone[0] + alone[1], rtol=1e-6)
    assert abs(added["stack"] - added["union"]).numpy().max() > 0.1


def test_a_union_has_methods_alone():
    with pytest.raises(UserError, match="'b' is no method; .*as in union"):
        parse("union(lora, {'b': pfeiffer})")


def test_parts_of_a_union_at_one_place_are_refused(tiny_config):
    method = parse("union(pfeiffer(layers='1'), parallel)")
    with pytest.raises(UserError, match="two parts would train the same var"):
        method.check(tiny_config)
    parse("union(pfeiffer(layers='1'), parallel(layers='0'))").check(
        tiny_config
    )


@pytest.mark.parametrize("parts", ["{}, {}", "{{'a': {}}}, {{'b': stack({})}}"])
def test_the_end_of_a_text_is_not_seen_behind_a_prompt(tiny_config, parts):
    text = f"stack({parts})"
    parse(text.format("loreft", "prompt")).check(tiny_config)
    with pytest.raises(UserError, match="expected loreft with suffix=0"):
        parse(text.format("loreft(suffix=1)", "prompt")).check(tiny_config)


@pytest.mark.parametrize("name, parts", [("mam", 2), ("unipelt", 3)])
def test_a_preset_is_a_union(name, parts):
    method = parse(name)
    assert method.name == "union" and len(method.parts) == parts
    with pytest.raises(UserError, match=f"{name} takes no arg.*union") as found:
        parse(f"{name}(size=3)")
    assert "\n" not in str(found.value)
    assert parse(f"stack({{'a': {name}}}, lora)").parts[0].method == method


@pytest.mark.parametrize("text", ["stack(a, lora, a)", "stack({'a': lora}, a)"])
def test_a_name_is_there_once(text):
    with pytest.raises(UserError, match="'a' is no name, or is there tw"):
        parse(text)


def test_what_a_part_changes_has_the_name_of_berts_own_within_its_own():
    assert changed_by(f"parts.a/changes/{KERNEL}") == KERNEL
    assert changed_by(f"parts.a/parts.b/changes/{KERNEL}") == KERNEL
    for name in (KERNEL, f"parts.a/{ADAPTER}", "output_weights"):
        assert changed_by(name) == ""


def test_where_one_adapter_is_alone_it_is_fused_too(tiny_config):
    method = parse(
        "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=4, layers='1')})"
    )
    method.check(tiny_config)
    assert method.places(tiny_config) == [(0, "ffn"), (1, "ffn")]
    tiny = TinyModel(tiny_config, method)
    rng = np.random.default_rng(5)
    for p in tiny.table.parameters:
        if "adapters" in p.name or "/fusion/" in p.name:
            tiny.variables[p.name].assign_add(rng.normal(size=p.shape))
    x, context = tf.constant(rng.normal(size=(4, 9, 16)), tf.float32), None
    context = tiny.context()
    hooks = tiny.model.bert.hooks
    found = hooks.before_norm(0, "ffn", x, x, lambda h: h, context)
    alone = hooks.parts[0].before_norm(0, "ffn", x, x, lambda h: h, context)
    value = tiny.variables[
        "bert/encoder/layer_0/output/fusion/value/kernel"
    ].numpy()
    np.testing.assert_allclose(found, alone @ value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "other, more, first", [(1, "", 0), (0, ", first=1, robust=true", 1)]
)
def test_adapters_that_never_meet_are_not_fused(
    tiny_config, other, more, first
):
    """Or only below the first layer that has any."""
    method = parse(
        "fusion({'a': pfeiffer(layers='0'), "
        f"'b': pfeiffer(layers='{other}')}}{more})"
    )
    words = f"from layer {first} on no two parts have an adapter at"
    with pytest.raises(UserError, match=words):
        method.check(tiny_config)


def test_a_stack_has_a_mean_if_its_parts_have(tiny_config):
    text = "average({{'s': stack({{'a': {}}}, pfeiffer(size=4)), 't': {}}})"
    one = "pfeiffer(size=4)"
    parse(text.format(one, one)).check(tiny_config)
    for part in ("prefix(length=3)", "mad_x(4, 4)"):
        with pytest.raises(UserError, match="stack, which acts on what has no"):
            parse(text.format(part, one)).check(tiny_config)


def test_the_mean_of_a_stack_with_itself_is_the_stack(tiny_config):
    """Whatever its parts do: add, scale, or change BERT itself."""
    stack = "stack({'a': bitfit, 'b': lora(rank=2)}, pfeiffer(size=4))"
    alone = TinyModel(tiny_config, parse(f"average({{'s': {stack}}})"))
    alone.shake(frozen=True)
    text = f"average({{'s': {stack}, 't': {stack}}})"
    both = TinyModel(tiny_config, parse(text))
    for name, variable in both.variables.items():
        variable.assign(alone.variables[name.replace("parts.t/", "parts.s/")])
    np.testing.assert_allclose(both.logits(), alone.logits(), atol=1e-5)


def test_each_of_two_loras_acts_on_its_own_kernels(tiny_config):
    """With a scale of its own: the second one's is twice the first one's."""
    one = TinyModel(tiny_config, parse("lora(rank=2, targets='query,value')"))
    one.shake()
    text = "stack(lora(2, targets='query'), lora(2, 16, targets='value'))"
    two = TinyModel(tiny_config, parse(text))
    for name, variable in two.variables.items():
        half = 0.5 if name.endswith("value/lora_b") else 1.0
        variable.assign(half * one.variables[name])
    np.testing.assert_allclose(two.logits(), one.logits(), atol=1e-5)


def test_a_trained_adapter_drops_nothing_at_random(tiny_config):
    """In training it computes what it does in prediction."""
    name = "bert/encoder/layer_0/attention/self/query"
    part = "lora(rank=2, dropout=0.5)"
    for text, is_same in (
        (f"stack({{'a': {part}}}, pfeiffer(size=4))", True),
        (f"stack({part}, pfeiffer(size=4))", False),
    ):
        tiny = TinyModel(tiny_config, parse(text))
        tiny.shake(frozen=True)
        found = [
            tiny.model.bert.hooks.project(
                name,
                tf.ones([2, 3, 16]),
                Kernel(lambda x: 2 * x, None),
                tiny.context(training),
            )
            for training in (False, True)
        ]
        assert np.array_equal(*found) == is_same


def test_of_parts_there_are_a_hundred_at_most():
    assert len(parse(f"stack({', '.join(['lora'] * 100)})").parts) == 100
    with pytest.raises(UserError, match="101 parts, expected at most 100"):
        parse(f"stack({', '.join(['lora'] * 101)})")


def test_names_with_hyphens_want_quotation_marks():
    with pytest.raises(UserError, match="quotation marks, as in stack.'sst-2'"):
        parse("fusion(sst-2, rte)")
    assert parse("fusion('sst-2', rte)").parts[0].name == "sst-2"


def test_diff_prunings_second_phase_keeps_what_is_trained_beside_it():
    method = parse("stack(diff_pruning(structured=false), lora)")
    first = {
        "diff_pruning/bert/x/diff": np.ones(1000, np.float32),
        "diff_pruning/bert/x/gate": np.ones(1000, np.float32),
        "lora/a": np.full(3, 4, np.float32),
    }
    start = method.second_start(
        ["bert/x"],
        ["lora/a"],
        lambda name: np.zeros(1000, np.float32),
        first.__getitem__,
    )
    np.testing.assert_array_equal(start["lora/a"], first["lora/a"])


@pytest.mark.parametrize(
    "text",
    [
        "stack({'a': houlsby(size=4), 'b': bitfit}, lora(rank=2))",
        "average({'a': bitfit, 'b': layernorm}, weights='1,3')",
        "average({'a': lora(rank=2), 'b': lora(rank=3)}, scale=0.5)",
        "stack('a', {'b': bitfit}, 'c')",
    ],
)
def test_a_composition_is_read_as_it_is_written(text):
    method = parse(text)
    assert parse(str(method)) == method
    assert [part.name for part in method.parts][:2] == ["a", "b"]
