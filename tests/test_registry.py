"""Methods as text."""

import math

import pytest
import refusals

from adapter_bert.methods.fine_tuning import Full
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.methods.registry import METHODS, parse

pytestmark = pytest.mark.older_stack


def test_defaults_fill_arguments_that_the_text_leaves_out():
    defaults = {"size": 8, "init_scale": 1e-3}
    assert parse("houlsby", defaults) == Houlsby(8, 1e-3)
    assert parse("houlsby(16)", defaults).size == 16
    assert parse("full", defaults) == Full()


def test_words_need_no_quotation_marks():
    assert parse("houlsby(sites=ffn)") == parse("houlsby(sites='ffn')")
    assert parse("houlsby(layers=5)") == parse("houlsby(layers='5')")
    direct = parse("prefix(reparameterize=False)")
    assert parse("prefix(reparameterize=false)") == direct
    assert parse(str(direct)) == direct


@pytest.mark.parametrize(
    "text,words",
    [
        ("lore", "unknown tuning method 'lore'; expected one of houlsby"),
        ("houlsby(", "cannot be read"),
        ("houlsby(size=x)", "size is 'x', expected a value of type int"),
        ("__import__('os').system('true')", "cannot be read"),
        ("", "cannot be read"),
        ("houlsby(size='8')", "expected a value of type int"),
        ("houlsby(size=True)", "expected a value of type int"),
        (f"houlsby(init_scale={10**400})", "init_scale is too large"),
        ("houlsby(dept=2)", "it takes: size, init_scale"),
        ("compacter(size=6)", "expected a multiple of n, which is 4"),
        ("pals(size=7, heads=2)", "expected a multiple of heads"),
        ("lora(targets='q')", "expected some of query,key,value,attention_o"),
        ("lora(targets='')", "'' is unknown or named twice"),
        ("lora(rank_pattern='query')", "rank_pattern has 'query', expected wh"),
        ("lora(rank_pattern='query:1.5')", "has 'query:1.5', expected whole"),
        ("lora(rank_pattern='q:1')", "rank_pattern has 'q:1'"),
        ("lora(rank_pattern='3-1:2')", "rank_pattern has '3-1:2'"),
        ("lora(rank_pattern='1:2,')", "rank_pattern has 'nothing'"),
        ("lora(alpha_pattern='1.key:0')", "has '1.key:0', expected positive"),
        ("vera(seed=-1)", "vera: seed is -1, expected 0 to 4294967295"),
        ("prefix(reparameterize=1)", "expected a value of type bool"),
        ("ia3(1)", "it takes: none"),
        ("houlsby(layers=1.5)", "expected a value of type str"),
        ("houlsby(layers='')", "expected 'all', or numbers and ranges"),
        ("houlsby(layers='1-')", "'1-' is neither a layer nor a range"),
        ("houlsby(layers='3-1')", "'3-1' is neither a layer nor a range"),
        ("houlsby(layers='0,all')", "'all' is neither a layer nor a range"),
        ("houlsby(layers='0-99999999')", "is neither a layer nor a range"),
        ("houlsby(layers='0-3,2-5')", "layer 2 is named twice"),
        ("top_layers(1, 2)", "too many positional arguments"),
        ("houlsby(3, size=4)", "multiple values for argument 'size'"),
        ("houlsby(size=8, size=9)", "an argument is given twice; it takes: s"),
        # Little is cited of a long text.
        ("(" * 201, f"method '{'(' * 200}' cannot"),
    ],
)
def test_a_bad_method_is_one_line_that_says_why(text, words):
    refusals.check(lambda: parse(text), words)


@pytest.mark.parametrize("name", METHODS)
def test_arguments_keep_the_limits_that_a_method_declares(name):
    kind = METHODS[name]
    wrong = {
        **{key: [0, -1] for key in kind.positive},
        **{k: [low - 1, high + 1] for k, (low, high) in kind.limits.items()},
        **{key: ["sin"] for key in kind.choices},
    }
    for key, values in wrong.items():
        for value in values:
            if value != math.inf:
                refusals.check(
                    lambda k=key, v=value: parse(f"{name}({k}={v!r})"),
                    name,
                    "expected",
                )
