"""Weighted sums of adapters: against peft's, by hand, and what is refused."""

import dataclasses

import numpy as np
import pytest
import refusals
from conftest import below, module_fixture
from numpy.testing import assert_allclose, assert_array_equal
from test_golden_methods import CONFIG
from test_methods import METHOD_TEXTS

from adapter_bert.bert import encoder
from adapter_bert.methods import weighted_sums
from adapter_bert.methods.lora import Lora
from adapter_bert.methods.registry import parse
from adapter_bert.methods.weighted_sums import WeightedSum

pytestmark = pytest.mark.newer_stack

SAME_RANK = (
    "lora(rank=2, alpha=6)",
    "lora(rank=2, alpha=2, targets='query,output')",
    "lora(rank=2, alpha=4)",
)
RANKS = (
    "lora(rank=2, alpha=6)",
    "lora(rank=3, alpha=2, targets='query,output')",
    "lora(rank=1, alpha=4)",
)
WAYS = list(weighted_sums.WAYS)
CASES = [
    *(("same_rank", SAME_RANK, by) for by in WAYS),
    *(("ranks", RANKS, by) for by in ("cat", *weighted_sums.OF_UPDATES)),
    ("ia3", ("ia3",) * 3, "linear"),
]


@module_fixture
def golden(recording):
    return recording("weighted_sums")


@pytest.mark.parametrize("case, texts, by", CASES)
def test_sums_are_those_of_peft(golden, monkeypatch, case, texts, by):
    density = float(golden["density"])
    has_density = "ties" in by or "dare" in by or "prune" in by
    how = WeightedSum(by, density=density if has_density else None)
    masks = iter(below(golden, f"{case}/{by}/masks/").values())

    def chosen(self, name, number, shape):
        mask = next(masks)
        assert mask.shape == shape
        return mask

    monkeypatch.setattr(WeightedSum, "chosen", chosen)
    weights = golden[f"weights/{'ia3' if case == 'ia3' else 'lora'}"]
    merged, summed = how.merge(
        CONFIG,
        None,
        [parse(text) for text in texts],
        [below(golden, f"{case}/{name}/") for name in "abc"],
        list(weights),
    )
    assert next(masks, None) is None
    expected = below(golden, f"{case}/{by}/merged/")
    assert set(summed) == set(expected) == set(merged.variables(CONFIG))
    if by in weighted_sums.OF_UPDATES:
        assert merged.rank == 3 == merged.alpha
        # An SVD leaves the signs of its vectors open.
        summed, expected = map(updates, (summed, expected))
    assert summed
    for name, value in summed.items():
        assert_allclose(value, expected[name], atol=1e-5)


def updates(values):
    """The product of each pair of LoRA's factors, by scope."""
    return {
        name[: -len("a")]: value @ values[f"{name[:-1]}b"]
        for name, value in values.items()
        if name.endswith("lora_a")
    }


def pretrained(name):
    """A BERT's own variable, float32."""
    return np.ones(encoder.list_variables(CONFIG)[name], np.float32)


def random_values(method, seed):
    """Of all variables that a method adds, near their first values."""
    rng = np.random.default_rng(seed)
    return {
        name: encoder.initial_values(
            name, d.shape, d.initializer, 0, pretrained
        )
        + rng.normal(0, 0.2, d.shape).astype(np.float32)
        for name, d in method.variables(CONFIG).items()
    }


def random_parts(texts):
    """Methods, and random values of each."""
    methods = [parse(text) for text in texts]
    return methods, [random_values(x, n) for n, x in enumerate(methods)]


def test_the_majority_is_of_the_sum_or_of_the_signs():
    signs = np.array([[5.0], [-1.0], [-1.0]], np.float32)
    for sign, expected in (("total", 5.0), ("frequency", -1.0)):
        how = WeightedSum("ties", density=1.0, majority_sign=sign)
        assert_allclose(how("x", signs, [1, 1, 1]), [expected])


def test_dare_is_a_function_of_the_seed_and_keeps_the_expectation():
    changes = np.ones((2, 100, 100), np.float32)
    how = WeightedSum("dare_linear", density=0.2)
    summed = how("x", changes, [0.5, 0.5])
    assert_array_equal(summed, how("x", changes, [0.5, 0.5]))
    assert set(np.unique(summed)) == {0.0, 2.5, 5.0}
    assert abs(summed.mean() - 1.0) < 0.05
    for other in (
        dataclasses.replace(how, seed=1)("x", changes, [0.5, 0.5]),
        how("y", changes, [0.5, 0.5]),
    ):
        assert np.any(other != summed)


@pytest.mark.parametrize("text", METHOD_TEXTS)
def test_the_mean_of_equal_adapters_is_the_adapter(text):
    """By each way that a method has, with weights of a sum of one."""
    method = parse(text)
    values = random_values(method, 0)
    # The sum has the first one's arguments.
    other = method
    if hasattr(method, "dropout"):
        other = dataclasses.replace(method, dropout=0.5)
    for by in ("average", "linear", "magnitude_prune"):
        more = {"density": 1.0} if by == "magnitude_prune" else {}
        how = WeightedSum(by, **more)
        weights = [0.25, 0.75]
        some = [method, other]
        arguments = (CONFIG, pretrained, some, [values] * 2, weights)
        if by != "average" and (method.factored or method.new_words):
            if type(method) is Lora:
                continue
            refusals.check(
                lambda h=how, a=arguments: h.merge(*a),
                "are not added up by",
                "--by=average",
            )
            continue
        merged, summed = how.merge(*arguments)
        assert merged == method
        assert set(summed) == set(values)
        for variable, value in values.items():
            assert_allclose(summed[variable], value, atol=1e-6)


def test_changes_count_from_where_training_starts():
    """From the ones of (IA)^3, and from zero where values start at random."""
    ia3, houlsby = parse("ia3"), parse("houlsby(size=4)")
    how = WeightedSum("linear")
    ones = {n: np.full(d.shape, 1.5) for n, d in ia3.variables(CONFIG).items()}
    _, summed = how.merge(CONFIG, None, [ia3] * 2, [ones] * 2, [1.0, 2.0])
    for value in summed.values():
        assert_allclose(value, 2.5)
    values = random_values(houlsby, 0)
    name = "bert/encoder/layer_0/output/LayerNorm/gamma"
    values[name] = np.full(CONFIG.hidden_size, 3.0)
    _, summed = how.merge(
        CONFIG,
        lambda name: np.full(CONFIG.hidden_size, 2.0),
        [houlsby] * 2,
        [values] * 2,
        [1.0, 2.0],
    )
    assert_allclose(summed.pop(name), 2.0 + 3.0 * (3.0 - 2.0))
    for name, value in summed.items():
        assert_allclose(value, 3.0 * values[name], atol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"by": "ties"}, "--density is None, but --by=ties keeps a share"),
        ({"by": "ties", "density": 1.1}, "above 0 and at most 1"),
    ],
)
def test_a_share_is_a_share(arguments, message):
    refusals.check(lambda: WeightedSum(**arguments), message)


PARTS = ("stack({'a': pfeiffer(2)}, pfeiffer(2))",) * 2


@pytest.mark.parametrize(
    "by, texts, message",
    [
        ("linear", RANKS, "the ranks are 2, 3, 1, but --by=linear adds up"),
        ("svd", ("pfeiffer", "pfeiffer"), "pfeiffer are not added up by svd"),
        ("cat", ("lora", "ia3"), "ia3; expected one"),
        ("average", SAME_RANK, "expected one method with the same arguments"),
        (
            "linear",
            ("stack({'a': pfeiffer}, lora)",) * 2,
            "stack are not added up by linear",
        ),
        # What no training changes has to be the same.
        ("linear", PARTS, "is another one in each"),
        ("svd 17", ("lora(rank=2)",), "expected at most 16"),
    ],
)
def test_methods_that_have_no_such_sum_are_refused(by, texts, message):
    methods, values = random_parts(texts)
    by, _, rank = by.partition(" ")
    how = WeightedSum(by, rank=int(rank) if rank else None)
    refusals.check(
        lambda: how.merge(CONFIG, None, methods, values, [1.0] * len(texts)),
        message,
    )


def test_ranks_by_pattern_are_filled_up_with_zeros():
    """And the sum is the sum of the updates."""
    texts = (
        "lora(2, alpha=3, rank_pattern='0.query:3, 1.value:0')",
        "lora(3, rank_pattern='1.value:0', alpha_pattern='query:5')",
    )
    methods, values = random_parts(texts)
    weights = [1.0, -0.5]

    def zeros(name):
        return 0 * pretrained(name)

    for how in (WeightedSum("cat"), WeightedSum("svd", rank=6)):
        merged, summed = how.merge(CONFIG, None, methods, values, weights)
        assert merged.rank == merged.alpha == 6
        after = merged.merge(CONFIG, zeros, summed)
        each = [m.merge(CONFIG, zeros, v) for m, v in zip(methods, values)]
        for name, update in after.items():
            expected = sum(
                weight * one.get(name, 0.0)
                for weight, one in zip(weights, each)
            )
            assert_allclose(update, expected, atol=1e-5)
        assert not after[
            "bert/encoder/layer_1/attention/self/value/kernel"
        ].any()
    _, summed = WeightedSum("linear").merge(
        CONFIG, None, methods, values, [1.0, 1.0]
    )
    assert len({value.shape for value in summed.values()}) == 2


def test_a_share_is_of_each_matrix_at_its_own_rank():
    """Also where another adapter has a greater one."""
    texts = (
        "lora(4, rank_pattern='0.query:1, 0.value:2')",
        "lora(4, rank_pattern='0.query:2, 1.query:1')",
    )
    methods, values = random_parts(texts)
    _, summed = WeightedSum("magnitude_prune", density=0.25).merge(
        CONFIG, None, methods, values, [1.0, 0.0]
    )
    for name, value in values[0].items():
        assert np.count_nonzero(summed[name]) == value.size // 4
