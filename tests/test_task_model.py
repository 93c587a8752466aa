"""The table of parameters: groups, counts, and what does not fit."""

import dataclasses

import pytest

from adapter_bert.bert import encoder
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.methods.registry import parse
from adapter_bert.tasks.kinds import get_task
from adapter_bert.tasks.task_model import check_is_trained, list_parameters

BASE = encoder.BertConfig(vocab_size=30522)


def counts(table):
    groups = {}
    for p in table.parameters:
        groups[p.group] = groups.get(p.group, 0) + p.count
    return groups


def test_bert_base_on_mrpc_has_the_published_counts():
    table = list_parameters(BASE, Houlsby(64), get_task("MRPC").build_head)
    assert counts(table) == {
        "embeddings": 23_835_648,
        "encoder": 85_017_600,
        "LayerNorm": 38_400,
        "pooler": 590_592,
        "adapters": 2_379_264,
        "head": 1_538,
    }
    text = table.to_text()
    assert [line.split() for line in text.splitlines()[1:10]] == [
        ["group", "parameters", "trained", "frozen"],
        ["embeddings", "23,835,648", "-", "23,835,648"],
        ["encoder", "85,017,600", "-", "85,017,600"],
        ["LayerNorm", "38,400", "38,400", "-"],
        ["pooler", "590,592", "-", "590,592"],
        ["adapters", "2,379,264", "2,379,264", "-"],
        ["head", "1,538", "1,538", "-"],
        ["total", "111,863,042", "2,419,202", "109,443,840"],
        ["trained:", "2.16%", "of", "all", "parameters"],
    ]
    # In columns.
    assert len({len(line) for line in text.splitlines()[1:9]}) == 1
    assert "**** Total Parameters = 111863042 *****" in text
    assert "**** Total Trainable Parameters = 2419202 *****" in text


def test_an_expression_that_names_nothing_is_a_defect():
    @dataclasses.dataclass(frozen=True)
    class Broken(TuningMethod):
        def trains(self, config):
            return "kernel"

    with pytest.raises(ValueError, match="'kernel' .*matches nothing"):
        list_parameters(BASE, Broken(), get_task("MRPC").build_head)


def test_untrained_heads_and_adapters_are_refused():
    head = {"output_weights", "output_bias"}
    for method, names, words in (
        ("head", {"bert/x"}, "no trained head"),
        ("head", head, None),
        ("houlsby", head, "no trained adapters"),
    ):
        table = list_parameters(
            BASE, parse(method), get_task("MRPC").build_head
        )
        if words is None:
            check_is_trained(table, names, "the checkpoint")
        else:
            with pytest.raises(UserError, match=words):
                check_is_trained(table, names, "the checkpoint")
