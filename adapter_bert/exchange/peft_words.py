"""New words as peft has them: `trainable_token_indices` of LoRA.

peft trains rows of a matrix of word embeddings that its user has made longer.
Here only rows behind BERT's own are trained.
"""

import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.data import tokenization
from adapter_bert.data.added_tokens import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    NewToken,
    as_added,
    as_decoder,
    check_new_tokens,
    tokens_behind,
)
from adapter_bert.data.huggingface_tokenizer import (
    SubwordTokenizer,
    read_ids,
)
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import Exported
from adapter_bert.exchange.peft_modules import ROOT
from adapter_bert.exchange.specs import Adapter
from adapter_bert.methods.new_words import NEW_WORDS

FIELD = "trainable_token_indices"
MODULE = "word_embeddings"
# The trained rows, and the whole matrix, which peft saves if it is longer.
ROWS, WHOLE = "trainable_tokens_delta", "base_layer.weight"
VOCABULARY_FILES = TOKENIZER_FILE, "vocab.txt"


def _scope(config: BertConfig) -> str:
    prefix = ARCHITECTURES[config.model_type].prefix
    return f"{ROOT}{prefix}embeddings.{MODULE}.token_adapter."


def read(
    adapter: Adapter,
) -> tuple[Optional[np.ndarray], Optional[np.ndarray]]:
    """Reads embeddings of new words [n, D], and BERT's [V, D] if present."""
    described, tensors, config, path, _ = adapter
    field = described.get(FIELD)
    if not field:
        return None, None
    indices = field
    if isinstance(field, dict) and len(field) == 1:
        [(module, indices)] = field.items()
        indices = indices if module.endswith(MODULE) else None
    first, size = config.vocab_size, config.embedding_width
    whole = isinstance(indices, list) and all(type(n) is int for n in indices)
    if not whole or sorted(indices) != [first + n for n in range(len(indices))]:
        raise UserError(
            f"{path}: {FIELD} is {str(field)[:80]}, but here only new words "
            f"are trained, whose numbers of {MODULE} follow BERT's from "
            f"{first} on without a gap"
        )
    scope, words = _scope(config), None
    rows = tensors.take(scope + ROWS, len(indices), size)
    if scope + WHOLE in tensors.names:
        words = tensors.take(scope + WHOLE, None, size)[:first]
    return rows[np.argsort(indices)], words


def find_tokens(
    folder: str, tokenizer: tokenization.TextTokenizer, count: int
) -> list[NewToken]:
    """Reads an adapter's new words from the tokenizer in its folder.

    Args:
        folder: of the adapter.
        tokenizer: of its BERT, without new words.
        count: of the new words.
    """
    for name in VOCABULARY_FILES:
        path = os.path.join(folder, name)
        if files.exists(path):
            if isinstance(tokenizer, SubwordTokenizer):
                entries = read_ids(files.read_json(path, "the tokenizer"), path)
            else:
                entries = tokenization.read_vocabulary(path)
            if not entries.items() <= tokenizer.vocabulary.items():
                raise UserError(
                    f"{path} is another vocabulary than the BERT's; expected "
                    "the BERT of the adapter"
                )
    path = os.path.join(folder, TOKENIZER_FILE)
    vocabulary = tokenizer.vocabulary
    tokens = tokens_behind(path, vocabulary, tokenizer.special)
    if len(tokens) != count:
        raise UserError(
            f"{folder} has {count} new words, but the tokenizer in it names "
            f"{len(tokens)} tokens behind the BERT's; save the adapter's "
            "tokenizer there (tokenizer.save_pretrained)"
        )
    return check_new_tokens(tokens, path)


def describe(
    tokens: Sequence[NewToken], config: BertConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of peft's config, and a `tokenizer_config.json`, by file name."""
    last = config.vocab_size - 1
    added = as_added(tokens, {"": last})
    numbers = [one.id for one in added]
    return {FIELD: numbers}, {TOKENIZER_CONFIG_FILE: as_decoder(added)}


def tensors_of(exported: Exported) -> dict[str, np.ndarray]:
    """Returns the tensors of an adapter's new words."""
    return {_scope(exported.config) + ROWS: exported.read(NEW_WORDS)}
