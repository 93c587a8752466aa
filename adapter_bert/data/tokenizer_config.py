"""Fields of `tokenizer_config.json`, and what they say of texts.

Sources: transformers 4.57 and 5.24 (`PreTrainedTokenizerBase`, the fast
tokenizers of BERT, RoBERTa, XLM-R, ALBERT, ELECTRA, DistilBERT and MPNet).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional

from adapter_bert import files
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from adapter_bert.errors import UserError

# Their tokenizers find words by programs of their own.
FOREIGN = "BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer"
# With these `tokenizer.json` counts as it is, with others the fields.
AS_DESCRIBED = "PreTrainedTokenizerFast", "TokenizersBackend"
# They give the model no segments.
WITHOUT_SEGMENTS = "DistilBertTokenizer", "MPNetTokenizer"
SIDES = "right", "left"
SEGMENTS = "token_type_ids"
SWITCHES = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "add_prefix_space",
)
FIELD_TYPES = {
    **{f"{name}?": bool for name in SWITCHES},
    "truncation_side?": str,
    "model_input_names?": list,
}


@dataclasses.dataclass(frozen=True)
class Rules:
    """Holds what the files next to a vocabulary say of texts.

    Attributes:
        do_lower_case: None where no file says.
        strip_accents: None for what goes with the letters' case.
        tokenize_chinese_chars: a Chinese character is a word.
        add_prefix_space: a text begins as if after a space, for byte-level BPE;
            None for what `tokenizer.json` says.
        truncation_side: the end of a long text that is cut off; "" where no
            file says.
        has_segments: a pair's second text may have another segment.
    """

    do_lower_case: Optional[bool] = None
    strip_accents: Optional[bool] = None
    tokenize_chinese_chars: bool = True
    add_prefix_space: Optional[bool] = None
    truncation_side: str = ""
    has_segments: bool = True


USUAL = Rules()


def read_rules(folder: str, described: Mapping[str, Any], nearby: str) -> Rules:
    """Reads the rules of a vocabulary's folder, as transformers follow them.

    Args:
        folder: in which `tokenizer_config.json` may lie.
        described: the content of the `tokenizer.json` there, or nothing.
        nearby: the model's folder, whose file counts where the vocabulary's has
            none.
    """
    path = os.path.join(folder, TOKENIZER_CONFIG_FILE)
    if not files.exists(path):
        path = os.path.join(nearby, TOKENIZER_CONFIG_FILE)
    of_model = os.path.join(nearby, "config.json")
    about, fields = (
        files.read_optional(place, "a description of a model", kinds)
        for place, kinds in ((of_model, {}), (path, FIELD_TYPES))
    )
    kind = ""
    for place, content in ((of_model, about), (path, fields)):
        kind = str(content.get("tokenizer_class") or kind)
        if kind in FOREIGN:
            raise UserError(
                f"{place}: {kind} cuts texts into words by a program of its "
                "own, which cannot be done here; expected a tokenizer of BERT, "
                "RoBERTa or XLM-R"
            )
    rules = {name: fields.get(name) for name in SWITCHES}
    if fields:
        rules["add_prefix_space"] = rules["add_prefix_space"] or False
    if described and (kind in AS_DESCRIBED or not fields):
        rules.update(_described(described, kind in AS_DESCRIBED, folder))
    if rules["tokenize_chinese_chars"] is None:
        rules["tokenize_chinese_chars"] = True
    inputs = fields.get("model_input_names")
    if inputs is None and kind.startswith(WITHOUT_SEGMENTS):
        inputs = []
    side = fields.get("truncation_side") or ""
    return Rules(
        truncation_side=check_side(side, path),
        has_segments=inputs is None or SEGMENTS in inputs,
        **rules,
    )


def check_side(side: Any, path: str) -> str:
    """A side of `SIDES` or "", without capitals."""
    lower = str(side).lower()
    if lower not in ("", *SIDES):
        raise UserError(
            f"{path}: truncation_side is {str(side)[:80]!r}, expected 'right' "
            "or 'left'"
        )
    return lower


def side_of(described: Mapping[str, Any], path: str) -> str:
    """Returns the side at which a `tokenizer.json` cuts texts, or ""."""
    truncation = described.get("truncation")
    if not isinstance(truncation, dict):
        return ""
    return check_side(truncation.get("direction") or "", path)


def _described(
    described: Mapping[str, Any], is_whole: bool, folder: str
) -> dict[str, Any]:
    """Values of `SWITCHES` of a `tokenizer.json` with WordPieces.

    If it is the whole tokenizer, other parts than BERT's are refused.
    """
    model = described.get("model")
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        return {}
    for name, expected in (
        ("normalizer", "BertNormalizer"),
        ("pre_tokenizer", "BertPreTokenizer"),
    ):
        component = described.get(name)
        kind = (
            component.get("type") if isinstance(component, dict) else component
        )
        if kind != expected and is_whole:
            raise UserError(
                f"{os.path.join(folder, TOKENIZER_FILE)}: the {name} of these "
                f"WordPieces is {kind!r:.80}, expected {expected}"
            )
    component = described.get("normalizer")
    component = component if isinstance(component, dict) else {}
    names = ("lowercase", "strip_accents", "handle_chinese_chars")
    switches = dict(zip(SWITCHES, map(component.get, names)))
    wrong = [
        x for x in switches.values() if not isinstance(x, (bool, type(None)))
    ]
    if wrong:
        raise UserError(
            f"{os.path.join(folder, TOKENIZER_FILE)}: the normalizer has "
            f"{wrong[0]!r:.80}, expected true or false"
        )
    return switches
