"""Checks that trained values belong to a BERT."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints.differences import differences_of
from adapter_bert.checkpoints.weights import Base
from adapter_bert.data.added_tokens import NEW
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError


def check(
    description: Mapping[str, Any],
    source: str,
    base: Base,
    config: BertConfig,
    tokenizer: TextTokenizer,
) -> None:
    """Compares a model with the one on which something was trained.

    The description is `run.json` or `adapter_config.json` at `source`.
    """
    expected = description["base"]["fingerprint"]
    if base.fingerprint != expected:
        hub = description["base"].get("hub")
        raise UserError(
            f"{source} was trained on another BERT (fingerprint "
            f"{expected[:12]}) than {base.path} (fingerprint "
            f"{base.fingerprint[:12]})"
            + (f"; pass --init_checkpoint={hub}" if hub else "")
        )
    ours, theirs = tokenizer.describe(), description["tokenizer"]
    if NEW not in theirs:
        # What was trained without a task's own tokens does not depend on them.
        ours.pop(NEW, None)
    if theirs != ours:
        raise UserError(
            f"{source} was trained with another vocabulary or another "
            "--do_lower_case; pass those of its base"
        )
    # Older descriptions lack some fields.
    now = {"bert_config": dataclasses.asdict(config)}
    now["task"] = description["task"]
    for name, before, value in differences_of(
        "bert_config", description, now, partial=True
    ):
        name = name.partition(".")[2]
        if not name.endswith("dropout_prob"):
            raise UserError(
                f"{source} was trained with {name} {before!r}, but the BERT "
                f"config says {value!r}; check --bert_config_file"
            )
