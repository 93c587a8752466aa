"""The own head of a cross-encoder of sentence-transformers, as an adapter."""

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import sentence_transformers
from adapter_bert.checkpoints.hugging_face import kind_of_head
from adapter_bert.checkpoints.weights import Pretrained, check_shape
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import Foreign
from adapter_bert.methods import registry
from adapter_bert.tasks import task_model
from adapter_bert.tasks.from_description import restore_task
from adapter_bert.tasks.kinds import REGRESSION, RERANK


def read(opened: Pretrained, config: BertConfig) -> Foreign:
    """Reads the head of a model that gives a pair of texts one score.

    A model of transformers that does not say its scores' activation has
    sentence-transformers', a sigmoid.
    """
    kind = kind_of_head(opened.head)
    if kind not in ("", REGRESSION, RERANK):
        raise UserError(
            f"{opened.path}: its head is of {kind}, expected that of a "
            "cross-encoder, which gives a pair of texts one score"
        )
    task = restore_task({"name": RERANK}, {}, opened.path).fit_base(opened)
    method = registry.parse("head")
    table = task_model.list_parameters(config, method, task.build_head)
    weights = opened.weights
    task_model.check_is_trained(table, weights.shapes, weights.source)
    for parameter in table.trained:
        check_shape(weights, parameter.name, parameter.shape)
    length = sentence_transformers.read_cross_encoder(opened.folder)
    return Foreign(
        method,
        {"name": RERANK, **task.describe()},
        {p.name: weights.read(p.name) for p in table.trained},
        {"program": "sentence-transformers"},
        max_seq_length=length and min(length, config.max_tokens),
    )
