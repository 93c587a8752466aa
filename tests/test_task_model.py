"""The table of parameters: groups and counts."""

from adapter_bert.bert import encoder
from adapter_bert.methods.houlsby import Houlsby
from adapter_bert.tasks.kinds import get_task
from adapter_bert.tasks.task_model import list_parameters

BASE = encoder.BertConfig(vocab_size=30522)


def test_bert_base_on_mrpc_has_the_published_counts():
    table = list_parameters(BASE, Houlsby(64), get_task("MRPC").build_head)
    text = table.to_text()
    assert [" ".join(line.split()) for line in text.splitlines()[1:10]] == [
        "group parameters trained frozen",
        "embeddings 23,835,648 - 23,835,648",
        "encoder 85,017,600 - 85,017,600",
        "LayerNorm 38,400 38,400 -",
        "pooler 590,592 - 590,592",
        "adapters 2,379,264 2,379,264 -",
        "head 1,538 1,538 -",
        "total 111,863,042 2,419,202 109,443,840",
        "trained: 2.16% of all parameters",
    ]
    # In columns.
    assert len({len(line) for line in text.splitlines()[1:9]}) == 1
    assert "**** Total Parameters = 111863042 *****" in text
    assert "**** Total Trainable Parameters = 2419202 *****" in text
