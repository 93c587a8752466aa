"""BERT, as adapter_bert/bert/ has it."""

from adapter_bert.bert.config import BertConfig
from adapter_bert.bert.encoder import Bert, BertOutput, list_variables

__all__ = ["Bert", "BertConfig", "BertOutput", "list_variables"]
