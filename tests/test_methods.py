"""One suite for every tuning method, then what each alone promises."""

import dataclasses
import re

import numpy as np
import pytest
import refusals
import tensorflow as tf
from numpy.testing import assert_allclose
from tiny_model import TinyModel, table_of

from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Hooks
from adapter_bert.methods.registry import METHODS, PRESETS, parse

BASE = encoder.BertConfig(vocab_size=30522)

# Parameters that the method trains in BERT-base with two classes, outside the
# head: the published counts, or the sum that each docstring derives.
TRAINED_IN_BERT_BASE = {
    "houlsby(size=2)": 92_208 + 38_400,
    "houlsby(size=64)": 2_379_264 + 38_400,
    "houlsby(size=64, layers='6-11')": 1_189_632 + 18_432,
    "houlsby(size=64, layer_norms=False)": 2_379_264,
    "houlsby(size=64, layers='0,2,11')": 594_816 + 9_216,
    "houlsby(size=64, layers='0-11')": 2_379_264 + 36_864,
    "houlsby(size=64, sites='ffn')": 1_189_632 + 38_400,
    "houlsby(size=64, depth=2)": 2_379_264 + 24 * (64 * 64 + 64) + 38_400,
    "houlsby(size=64, layer_norm=True)": 2_379_264 + 24 * 1_536 + 38_400,
    "houlsby(size=64, gating=True)": 2_379_264 + 24 * 769 + 38_400,
    "pfeiffer(size=48)": 894_528,
    "pfeiffer(size=48, sizes='0-5:16,11:8')": 6 * 25_360 + 5 * 74_544 + 13_064,
    "pfeiffer(size=64)": 1_189_632,
    "bapna(size=64)": 1_208_064,
    "parallel(size=16)": 304_320,
    "adapterdrop(first=5, size=64)": 14 * 99_136 + 14 * 1_536,
    "adapterdrop(first=5, over='pfeiffer', size=48)": 7 * 74_544,
    "adapterdrop(size=64, robust=True)": 2_379_264 + 38_400,
    "compacter(size=24, n=4)": 57_088 + 38_400,
    "compacter(size=24, n=4, sites='ffn')": 28_576 + 38_400,
    "mad_x": 7_091_712 + 296_064,
    "mad_x(size=48, inverse_size=8)": 894_528 + 2 * (768 * 8 + 384 + 8),
    "pals(size=204)": 1_819_836,
    "lora(rank=8)": 294_912,
    "lora(rank=8, gating=True)": 294_912 + 24 * 769,
    "lora(rank=1, targets='query,key,value,attention_output')": 73_728,
    "lora(rank=2, targets='intermediate,output')": 12 * 2 * 2 * 3_840,
    "lora(rank=8, rs=true)": 294_912,
    "lora(rank=8, targets='query,value,pooler')": 294_912 + 8 * 1_536,
    # Layers 6 to 11 without queries, values at rank 4.
    "lora(rank=8, rank_pattern='6-11.query:0, 6-11:4')": 6 * 1_536 * (16 + 4),
    "dora(rank=8)": 313_344,
    "vera": 24_576,
    # Kopiczko et al. 2024, Table 1.
    "vera(rank=1024)": 43_008,
    "vera(rank=16, targets='intermediate', layers='11')": 16 + 3_072,
    "adalora": 24 * 12 * (768 + 768 + 1),
    "adalora(init_rank=3, rank=2, targets='output')": 12 * 3 * 3_841,
    "prefix(length=30)": 9_872_384,
    "prefix(length=30, inner_size=800)": 15_402_272,
    "prefix(length=30, reparameterize=False)": 552_960,
    "prefix(30, false, gating=True)": 552_960 + 12 * 769,
    "prefix(30, false, gating=True, shared_gating=False)": 552_960 + 24 * 769,
    "prompt(length=10)": 7_680,
    "loreft": 18_444,
    "loreft(rank=4, suffix=3, layers='0-5')": 2 * 6 * (4 * 2 * 768 + 4),
    "loreft(rank=4, suffix=3, tied=True)": 12 * (4 * 2 * 768 + 4),
    "ia3": 55_296,
    "bitfit": 102_912,
    # Through masks; the first phases' counts are below.
    "diff_pruning": 109_482_240,
    "lt_sft": 109_482_240,
    "full": 109_482_240,
    "top_layers(k=1)": 7_678_464,
    "top_layers(k=12)": 12 * 7_087_872 + 590_592,
    "layernorm": 38_400,
    "head": 0,
    "new_words(count=5)": 5 * 768,
    "stack({'language': pfeiffer}, pfeiffer(size=48))": 894_528,
    "stack(full, pals)": 109_482_240 + 1_819_836,
    "union(lora, parallel(size=16))": 294_912 + 304_320,
    # As AdapterHub's list of its configurations has them.
    "mam": 22_493_984,
    "unipelt": 11_083_376,
    "average({'a': houlsby, 'b': houlsby})": 0,
    # Pfeiffer et al. 2021, whatever the number of adapters.
    "fusion({'a': pfeiffer, 'b': pfeiffer})": 21_252_096,
    "fusion({'a': pfeiffer(8), 'b': pfeiffer, 'c': pfeiffer})": 21_252_096,
    "per_task(pals, tasks='a')": 109_482_240 + 1_819_836,
    # 13.3% more, the "1.13 times" of Stickland and Murray 2019.
    "per_task(pals, tasks='a,b,c,d,e,f,g,h')": 109_482_240 + 8 * 1_819_836,
    "fusion({'a': pfeiffer, 'b': pfeiffer}, first=4)": 8 * 1_771_008,
    "fusion({'a': pfeiffer, 'b': pfeiffer}, value=False)": 12 * 1_181_184,
}
# Arguments small enough for the tiny BERT, and how far from plain BERT the
# output is at the start: None where the method does not promise anything.
EXACT, NEAR = 0.0, 2e-3
METHOD_TEXTS = {
    "houlsby(size=4)": NEAR,
    "houlsby(size=4, layers='1')": NEAR,
    "houlsby(4, depth=2, layer_norm=True, nonlinearity='swish')": NEAR,
    "houlsby(size=4, sites='attention')": NEAR,
    "houlsby(size=4, gating=True)": NEAR,
    "pfeiffer(size=4)": NEAR,
    "pfeiffer(size=4, sizes='1:7')": 2 * NEAR,
    "bapna(size=4)": NEAR,
    "parallel(size=4)": EXACT,
    "parallel(size=4, nonlinearity='swish', layers='1')": EXACT,
    "parallel(size=4, sizes='0-1:3', gating=True)": EXACT,
    "adapterdrop(first=1, size=4)": NEAR,
    "adapterdrop(over='pfeiffer', first=1, size=4)": NEAR,
    "adapterdrop(first=1, size=4, robust=True)": NEAR,
    "compacter(size=8, n=4)": NEAR,
    "compacter(size=4, n=2, sites='ffn')": NEAR,
    "mad_x(size=4, inverse_size=3)": None,
    "mad_x(4, 3, nonlinearity='swish', init_scale=0.01, layers='1')": NEAR,
    "pals(size=6, heads=2)": NEAR,
    "lora(rank=2)": EXACT,
    "lora(rank=2, targets='intermediate,pooler', dropout=0.1)": EXACT,
    "lora(rank=2, targets='key,output', gating=True)": EXACT,
    "lora(rank=3, rs=true, rank_pattern='1.query:5, 1.value:0')": EXACT,
    "lora(rank=2, rank_pattern='1:3', alpha_pattern='1.value:2.5')": EXACT,
    "dora(rank=2)": 1e-5,
    "dora(rank=2, targets='key,pooler', rank_pattern='0.key:0')": 1e-5,
    "vera(rank=5, targets='value,pooler')": EXACT,
    "vera(rank=20, seed=3, targets='value,intermediate,output')": EXACT,
    "adalora(init_rank=4, rank=2)": EXACT,
    "adalora(init_rank=3, rank=1, targets='key,output', dropout=0.1)": EXACT,
    "prefix(length=3, inner_size=8)": None,
    "prefix(length=3, inner_size=8, gating=True)": None,
    "prefix(3, false, gating=True, shared_gating=False)": None,
    "prefix(length=3, reparameterize=False)": None,
    "prompt(length=3)": None,
    "prompt(length=2, heads_read='prompt')": None,
    "union(prompt(length=3), lora(rank=2))": None,
    "loreft(rank=2)": None,
    # In the last layer nothing is read of the last tokens.
    "loreft(rank=2, suffix=2, layers='0')": None,
    "loreft(2, tied=True, orthogonal=False, suffix=1, layers='1')": None,
    "loreft(orthogonal=False, subtract=False, nonlinearity='relu')": None,
    "ia3": EXACT,
    "bitfit": EXACT,
    "layernorm": EXACT,
    "diff_pruning(sparsity=0.05)": EXACT,
    "diff_pruning(sparsity=0.1, structured=False)": EXACT,
    "lt_sft(sparsity=0.05)": EXACT,
    "full": EXACT,
    "top_layers(1)": EXACT,
    "head": EXACT,
    "new_words(count=3)": EXACT,
    "stack(pfeiffer(size=4), new_words(count=3))": NEAR,
    "stack({'a': pfeiffer(size=4)}, pfeiffer(size=4))": 2 * NEAR,
    "stack({'a': houlsby(size=4)}, lora(rank=2), bitfit)": NEAR,
    "stack({'a': lora(rank=2), 'b': pals(6, 2)}, pals(6, 2))": NEAR,
    "stack({'a': bapna(4)}, bapna(size=4))": 2 * NEAR,
    "stack({'a': vera(5, targets='value')}, dora(rank=2))": 1e-5,
    "stack({'a': mad_x(4, 4)}, pfeiffer(size=4))": None,
    "stack(full, houlsby(size=4))": NEAR,
    "stack(prefix(length=3, inner_size=8), parallel(size=4))": None,
    "stack({'a': lt_sft}, lt_sft(sparsity=0.05))": EXACT,
    "stack({'a': prefix(3, false)}, diff_pruning(sparsity=0.05))": None,
    "union(lora(rank=2), prefix(3, inner_size=8), pfeiffer(size=4))": None,
    "union(parallel(size=4), houlsby(4, sites='attention'), ia3)": NEAR,
    "average({'a': houlsby(4), 'b': lora(rank=2)}, weights='3,1')": NEAR,
    "fusion({'a': pfeiffer(size=4), 'b': pfeiffer(size=8)})": NEAR,
    "fusion({'a': houlsby(4, layer_norms=false, layers='1'), "
    "'b': houlsby(4, layer_norms=false)})": NEAR,
    "per_task(pals(6, 2), tasks='a')": NEAR,
    "per_task(prefix(3, inner_size=8), tasks='a')": None,
    "fusion({'a': pfeiffer(4), 'b': pfeiffer(4)}, value=false)": NEAR,
    "fusion({'a': pfeiffer(4), 'b': pfeiffer(4)}, first=1, robust=true)": NEAR,
}
FIRST_PHASES = {
    str(phase): phase
    for phase in (parse(text).first_phase for text in METHOD_TEXTS)
    if phase
}


@pytest.fixture(params=[*METHOD_TEXTS, *FIRST_PHASES])
def text(request):
    return request.param


@pytest.fixture
def method(text):
    return FIRST_PHASES.get(text) or parse(text)


@pytest.fixture
def tiny(method, tiny_config):
    return TinyModel(tiny_config, method)


def test_all_methods_are_in_the_suites():
    for texts in (METHOD_TEXTS, TRAINED_IN_BERT_BASE):
        names = {text.split("(")[0] for text in texts}
        assert names - set(PRESETS) == set(METHODS)


@pytest.mark.older_stack
def test_a_method_starts_trains_and_is_kept(tiny, text):
    """From plain BERT's output, by its own variables alone, as it computes."""
    start = METHOD_TEXTS.get(text)
    if start is not None:
        plain = encoder.Bert(tiny.config, tiny.variables, Hooks())
        expected = tiny.encode(bert=plain).sequence_output
        actual = tiny.encode().sequence_output
        assert_allclose(actual, expected, atol=start)
    before = {n: v.numpy().copy() for n, v in tiny.variables.items()}
    # Some variables only get a gradient once others are no longer zero.
    for step in range(3):
        tiny.train_one_step(step)
    trained = {
        p.name: tiny.variables[p.name].numpy() for p in tiny.table.trained
    }
    assert trained
    for name, variable in tiny.variables.items():
        same = np.array_equal(before[name], variable.numpy())
        assert same != (name in trained), name
    logits = tiny.logits()
    half = dataclasses.replace(tiny.context(), dtype=tf.bfloat16)
    narrow = tiny.model(tiny.features, half)["logits"]
    assert narrow.dtype == tf.float32
    assert_allclose(logits, narrow, atol=0.03)
    if text in FIRST_PHASES:
        return
    method, values = parse(text).finish(tiny.config, trained)
    assert parse(str(method)) == method
    kept = TinyModel(tiny.config, method)
    assert {p.name for p in kept.table.trained} == set(values)
    for name, variable in kept.variables.items():
        value = tiny.variables.get(name, tf.zeros(variable.shape))
        variable.assign(values.get(name, value))
    assert_allclose(kept.logits(), logits, atol=1e-6)


@pytest.mark.older_stack
def test_a_last_layer_computes_no_more_than_is_read(tiny):
    """The same outputs and gradients as one that computes all tokens."""
    tiny.shake()
    trained = [tiny.variables[p.name] for p in tiny.table.trained]
    results, head = [], tiny.model.head
    assert head.reads_first_token
    for first in (True, False):
        head.reads_first_token = first
        with tf.GradientTape() as tape:
            predictions = tiny.model(tiny.features, tiny.context())
            losses = head.loss(predictions, tiny.features)
        gradients = tape.gradient(losses, trained)
        results.append([predictions["logits"], *gradients])
    names = ["logits", *(p.name for p in tiny.table.trained)]
    for name, one, other in zip(names, *results):
        assert (one is None) == (other is None), name
        if one is not None:
            one, other = map(tf.convert_to_tensor, (one, other))
            assert_allclose(one, other, atol=2e-4, err_msg=name)


def test_attention_and_gates_of_outputs_need_all_tokens(
    text, method, tiny_config
):
    by_token = method.hooks(tiny_config, {}).by_token
    # The gates of prefixes read all tokens of what a layer reads.
    has_gates = "gating" in text and "prefix" not in text
    # A virtual token comes after all of a text's.
    reads_others = "pals" in text or "heads_read" in text
    assert by_token == (not has_gates and not reads_others)


@pytest.mark.parametrize("text,count", TRAINED_IN_BERT_BASE.items())
def test_trained_count_is_the_published_one(text, count):
    assert table_of(BASE, text).trained_count == count + 2 * 768 + 2


@pytest.mark.parametrize("text", [*METHOD_TEXTS, *TRAINED_IN_BERT_BASE])
def test_text_of_a_method_parses_to_an_equal_one(text):
    method = parse(text)
    assert parse(str(method)) == method


@pytest.mark.older_stack
@pytest.mark.parametrize(
    "text",
    [
        text
        for text in METHOD_TEXTS
        if parse(text).width and not re.search("pattern|sizes", text)
    ],
)
def test_a_wider_method_with_zeros_at_the_ends_computes_the_same(
    text, tiny_config
):
    method = parse(text)
    narrow = dataclasses.replace(method, **{method.width: 5})
    wide = narrow.widened()
    assert getattr(wide, method.width) == 8
    first, second = (TinyModel(tiny_config, m) for m in (narrow, wide))
    first.shake(0.1, frozen=True)
    for name, variable in first.variables.items():
        value = variable.numpy()
        wanted = second.variables[name].shape
        second.variables[name].assign(
            np.pad(value, [(0, w - n) for n, w in zip(value.shape, wanted)])
        )
    assert_allclose(first.logits(), second.logits(), atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "lora(rank=2)",
        "lora(rank=2, alpha=4.0, targets='key,attention_output,output')",
        "lora(3, rs=true, rank_pattern='1:5', alpha_pattern='0.value:2.5')",
        "lora(3, targets='value,pooler', rank_pattern='0.value:0, pooler:5')",
        "dora(rank=2, targets='query,intermediate,pooler')",
        "vera(rank=5, targets='pooler,intermediate,output', layers='1')",
        "ia3",
        "bitfit",
        "layernorm",
        "full",
        "top_layers(1)",
        "head",
    ],
)
def test_merged_weights_compute_the_same_in_plain_bert(text, tiny_config):
    tiny = TinyModel(tiny_config, text)
    # BERT's biases are not zero.
    tiny.shake(0.1, frozen=True)
    base = {name: v.numpy() for name, v in tiny.variables.items()}
    tiny.shake(0.1)
    trained = {
        p.name: tiny.variables[p.name].numpy() for p in tiny.table.trained
    }
    merged = parse(text).merge(tiny_config, base.__getitem__, trained)
    plain = TinyModel(tiny_config, "head")
    for name, variable in plain.variables.items():
        variable.assign(merged.get(name, trained.get(name, base[name])))
    assert merged or text == "head"
    assert_allclose(plain.logits(), tiny.logits(), atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "houlsby",
        "pfeiffer",
        "prefix",
        "pals(6, 2)",
        "compacter",
        "mad_x(4, 3)",
        "lora(gating=True)",
    ],
)
def test_what_adds_computation_cannot_be_merged(text, tiny_config):
    method = parse(text)
    refusals.check(
        lambda: method.merge(tiny_config, {}.__getitem__, {}),
        f"{method.name} ",
        "cannot be merged",
    )
