"""Floating-point operations of the model's matrix products, counted.

Only products are counted, as 2 operations for each multiplication and
addition; results/performance.md has the derivation. Everything else (LayerNorm,
gelu, softmax, dropout, bias, the optimizer) is work that a perfect
implementation would do for nothing.
"""

import re

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.tasks.task_model import Parameter, ParameterTable

LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
# Matrices that multiply every token, by their names in checkpoints.
KERNEL = re.compile(r"bert/encoder/.*(/kernel|/adapters/weights[12])")


# What the last layer reads all tokens by, though it computes only the first.
ALL_TOKENS = re.compile(r".*/attention/self/(key|value)/.*")


def forward(
    config: BertConfig, table: ParameterTable, rows: int, tokens: int
) -> int:
    """Operations of a forward pass over `rows` x `tokens`.

    The task reads the first token alone, so the last layer computes only that
    token. The head and the pooler are left out.
    """
    products = sum(_product(config, p, rows, tokens) for p in _kernels(table))
    return products + sum(_attentions(config, rows, tokens))


def training(
    config: BertConfig, table: ParameterTable, rows: int, tokens: int
) -> int:
    """Operations of a training step over `rows` x `tokens`.

    Backward, a product costs as much as forward for the gradient of its
    inputs, if anything below it is trained, and again for the gradient of its
    matrix, if that is trained. Attention multiplies two activations, so both
    gradients are needed.
    """
    total = forward(config, table, rows, tokens)
    lowest = min(_depth(p) for p in table.trained)
    for p in _kernels(table):
        gradients = (_depth(p) > lowest) + p.trained
        total += gradients * _product(config, p, rows, tokens)
    for layer, count in enumerate(_attentions(config, rows, tokens)):
        # The products of queries, keys and values come after their kernels.
        if (layer, 1) > lowest:
            total += 2 * count
    return total


def _kernels(table: ParameterTable):
    return [p for p in table.parameters if KERNEL.fullmatch(p.name)]


def _product(config: BertConfig, p: Parameter, rows: int, tokens: int) -> int:
    inputs, outputs = p.shape
    is_last = _depth(p)[0] == config.num_hidden_layers - 1
    if is_last and not ALL_TOKENS.fullmatch(p.name):
        tokens = 1
    return 2 * rows * tokens * inputs * outputs


def _attentions(config: BertConfig, rows: int, tokens: int) -> list[int]:
    asking = [tokens] * (config.num_hidden_layers - 1) + [1]
    return [2 * 2 * rows * n * tokens * config.hidden_size for n in asking]


def _depth(p: Parameter) -> tuple[int, int]:
    """(layer, place in it), in the order of computation.

    Embeddings come before all layers, the pooler and heads after them.
    """
    match = LAYER.match(p.name)
    if not match:
        return (-1, 0) if "/embeddings/" in p.name else (1 << 30, 0)
    order = (
        "/attention/self/",
        "/attention/output/dense/",
        "/attention/output/adapters/weights1",
        "/attention/output/adapters/",
        "/attention/output/LayerNorm/",
        "/intermediate/",
        "/output/dense/",
        "/output/adapters/weights1",
        "/output/adapters/",
        "/output/LayerNorm/",
    )
    place = next(i for i, part in enumerate(order) if part in p.name)
    return int(match.group(1)), place
