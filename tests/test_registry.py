"""Methods as text."""

import pytest
import refusals

from adapter_bert.methods.fine_tuning import Full
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.methods.registry import parse

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
        ("houlsby(size=0)", "expected at least 1"),
        ("houlsby(size='8')", "expected a value of type int"),
        ("houlsby(size=True)", "expected a value of type int"),
        ("houlsby(init_scale=-1.0)", "expected a positive number"),
        (f"houlsby(init_scale={10**400})", "init_scale is too large"),
        ("houlsby(dept=2)", "it takes: size, init_scale"),
        ("houlsby(depth=0)", "depth is 0, expected at least 1"),
        ("houlsby(nonlinearity='sin')", "expected one of gelu, gelu_new"),
        ("houlsby(sites='here')", "expected one of both, attention, ffn"),
        ("pfeiffer(size=0)", "expected at least 1"),
        ("pfeiffer(nonlinearity='')", "expected one of gelu"),
        ("bapna(size=-1)", "expected at least 1"),
        ("parallel(scale=0.0)", "expected a positive number"),
        ("adapterdrop(over='lora')", "expected one of houlsby, pfeiffer"),
        ("adapterdrop(first=-1)", "first is -1, expected 0 to inf"),
        ("compacter(size=6)", "expected a multiple of n, which is 4"),
        ("compacter(n=0)", "expected at least 1"),
        ("mad_x(inverse_size=0)", "inverse_size is 0, expected at least 1"),
        ("mad_x(nonlinearity='sin')", "mad_x: nonlinearity is 'sin'"),
        ("mad_x(layers='x')", "neither a layer nor a range"),
        ("pals(size=7, heads=2)", "expected a multiple of heads"),
        ("lora(rank=0)", "expected at least 1"),
        ("lora(alpha=-1)", "expected a positive number"),
        ("lora(targets='q')", "expected some of query,key,value,attention_o"),
        ("lora(targets='')", "'' is unknown or named twice"),
        ("lora(targets='key,key')", "'key' is unknown or named twice"),
        ("lora(dropout=1.0)", "expected 0.0 to 0.99"),
        ("lora(rank_pattern='query')", "rank_pattern has 'query', expected wh"),
        ("lora(rank_pattern='query:1.5')", "has 'query:1.5', expected whole"),
        ("lora(rank_pattern='q:1')", "rank_pattern has 'q:1'"),
        ("lora(rank_pattern='3-1:2')", "rank_pattern has '3-1:2'"),
        ("lora(rank_pattern='1:2,')", "rank_pattern has 'nothing'"),
        ("lora(alpha_pattern='1.key:0')", "has '1.key:0', expected positive"),
        ("lora(alpha_pattern='1.key:-1')", "has '1.key:-1', expected positive"),
        ("dora(targets='q')", "dora: targets is 'q'"),
        ("vera(rank=0)", "vera: rank is 0, expected at least 1"),
        ("vera(seed=-1)", "vera: seed is -1, expected 0 to 4294967295"),
        ("vera(d_initial=0)", "d_initial is 0.0, expected a positive number"),
        ("vera(dropout=1.0)", "vera: dropout is 1.0, expected 0.0 to 0.99"),
        ("vera(targets='query,')", "'' is unknown or named twice"),
        ("prefix(length=0)", "expected at least 1"),
        ("prefix(reparameterize=1)", "expected a value of type bool"),
        ("ia3(1)", "it takes: none"),
        ("diff_pruning(sparsity=0)", "expected a positive number"),
        ("diff_pruning(penalty=0.0)", "expected a positive number"),
        ("lt_sft(sparsity=1.5)", "sparsity is 1.5, expected 0.0 to 1.0"),
        ("houlsby(layers=1.5)", "expected a value of type str"),
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
        ("top_layers(1, 2)", "too many positional arguments"),
        ("houlsby(3, size=4)", "multiple values for argument 'size'"),
        ("houlsby(size=8, size=9)", "an argument is given twice; it takes: s"),
        ("full(1)", "it takes: none"),
        ("top_layers(0)", "expected at least 1"),
        # Little is cited of a long text.
        ("(" * 201, f"method '{'(' * 200}' cannot"),
    ],
)
def test_a_bad_method_is_one_line_that_says_why(text, words):
    refusals.check(lambda: parse(text), words)
