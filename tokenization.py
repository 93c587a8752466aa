"""WordPiece, as adapter_bert/data/tokenization.py has it."""

from adapter_bert.data.tokenization import (
    FullTokenizer,
    TextTokenizer,
    Tokens,
    read_vocabulary,
)

__all__ = ["FullTokenizer", "TextTokenizer", "Tokens", "read_vocabulary"]
