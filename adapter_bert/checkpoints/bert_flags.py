"""Flags of a pretrained BERT, for every program that opens one."""

import dataclasses
from typing import Optional

from adapter_bert.flags import Topic


@dataclasses.dataclass(frozen=True)
class LetterCase:
    """Says how a BERT's texts are read."""

    do_lower_case: Optional[bool] = Topic.MODEL.setting(
        None,
        "Lower-case the text, as uncased models need. Default: what the model "
        "or its vocabulary says. A trained adapter says it too.",
    )


@dataclasses.dataclass(frozen=True)
class BertFiles:
    """Names the files of a BERT."""

    init_checkpoint: str = Topic.MODEL.setting(
        "",
        "The pretrained BERT: minilm or mpnet, which `adapter-bert NAME "
        "--fetch` fetches, a TensorFlow checkpoint of Google's BERT or of "
        "adapter-bert, a Hugging Face folder or .safetensors file of a BERT, "
        "RoBERTa, XLM-R, DistilBERT, ELECTRA, ALBERT or MPNet, a module of "
        "TF-Hub or Kaggle, a repository of Hugging Face's hub "
        "(hf:ORG/NAME[@REVISION]), or a training checkpoint of this program. "
        "Adapters need the one that they were trained on.",
        alias="bert_hub_module_handle",
    )
    bert_config_file: str = Topic.MODEL.setting(
        "", "BERT's sizes; default: next to the model."
    )
    vocab_file: str = Topic.MODEL.setting(
        "", "The vocabulary; default: next to the model."
    )
