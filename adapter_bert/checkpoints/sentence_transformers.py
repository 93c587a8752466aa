"""Folders of sentence-transformers: a BERT, and how its vectors are made.

`modules.json` lists the modules that compute one after the other, each in a
folder of its own: the model of transformers, the pooling of its last layer's
outputs, and what gives vectors the length 1.

Source: sentence-transformers 5.7.0 (`SentenceTransformer`, its modules
`Transformer`, `Pooling` and `Normalize`), and the fields of version 2.
"""

import dataclasses
import os
from typing import Any, Dict, List, Optional, Tuple

from adapter_bert import files
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE
from adapter_bert.errors import UserError

MODULES_FILE = "modules.json"
WHOLE_FILE = "config_sentence_transformers.json"
POOLING_FILE = "config.json"
# The model's own, of which the first that is there counts.
MODEL_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
)
WHAT = "a description of sentence-transformers"
KNOWN = MODEL, POOLING, NORMALIZE = "Transformer", "Pooling", "Normalize"
PROGRAM = "sentence_transformers"
# Old field of a pooling -> the value of `pooling_mode` since version 5.
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = ("cls", "mean")
# The only values of fields that say what is pooled.
LAST_LAYER = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {
        "text": {
            "method": "forward",
            "method_output_name": "last_hidden_state",
        }
    },
}


@dataclasses.dataclass(frozen=True)
class Pooled:
    """How a model's vectors follow from its last layer's outputs.

    Attributes:
        pooling: `cls` for the first token's, `mean` for the mean over tokens.
        normalize: whether a vector's length becomes 1.
        max_seq_length: longest input in tokens; None for all that the model
            has positions for.
    """

    pooling: str
    normalize: bool
    max_seq_length: Optional[int] = None


def is_folder(path: str) -> bool:
    """Whether sentence-transformers has written a folder."""
    return files.exists(os.path.join(path, MODULES_FILE))


def read(folder: str) -> Tuple[str, Pooled]:
    """The folder of a model of transformers, and how its vectors are made.

    Raises:
        UserError: a file is missing or damaged, or a module or a field has no
            counterpart here.
    """
    model, pooling, normalize = _modules(os.path.join(folder, MODULES_FILE))
    path = os.path.join(folder, WHOLE_FILE)
    if files.exists(path):
        _check_whole(path)
    place = os.path.join(folder, model)
    length = _read_model(place)
    path = os.path.join(folder, pooling, POOLING_FILE)
    return place, Pooled(_read_pooling(path), normalize, length)


def _modules(path: str) -> Tuple[str, str, bool]:
    """Folders of model and pooling, and whether vectors get the length 1."""
    listed = files.read_json(path, WHAT)
    places, names = [], []
    for module in listed if isinstance(listed, list) else []:
        found = module if isinstance(module, dict) else {}
        kind, place = found.get("type"), found.get("path")
        first, _, name = str(kind).rpartition(".")
        is_own = first.split(".")[0] == PROGRAM
        names.append(name if is_own and name in KNOWN else str(kind))
        is_inside = isinstance(place, str) and not (
            os.path.isabs(place) or os.pardir in place.split("/")
        )
        if not is_inside:
            raise UserError(
                f"{path}: the folder of a module is {place!r:.80}, expected "
                "one in this folder"
            )
        places.append(place)
    if tuple(names) not in (KNOWN, KNOWN[:2]):
        raise UserError(
            f"{path}: the modules are {', '.join(names)[:200] or 'missing'}; "
            f"known are {MODEL}, then {POOLING}, then {NORMALIZE} or nothing"
        )
    return places[0], places[1], NORMALIZE in names


def _check_whole(path: str) -> None:
    """Refuses what changes the vectors of `encode`."""
    found = files.read_object(
        path, WHAT, {"default_prompt_name?": str, "prompts?": dict}
    )
    foreign_fields.check(found, foreign_fields.SENTENCE, path)
    kind = found.get("model_type")
    if kind not in (None, "SentenceTransformer"):
        raise UserError(
            f"{path}: model_type is {kind!r:.80}, expected SentenceTransformer"
        )
    prompt = found.get("default_prompt_name")
    if prompt and (found.get("prompts") or {}).get(prompt):
        raise UserError(
            f"{path}: texts get the prompt {prompt[:80]!r} by default, which "
            "is not added here; delete default_prompt_name, and put the "
            "prompt before the texts yourself"
        )


def _read_model(folder: str) -> Optional[int]:
    """The longest input of the model in a folder, in tokens."""
    tokenizer: Dict[str, Any] = {}
    path = os.path.join(folder, TOKENIZER_CONFIG_FILE)
    if files.exists(path):
        tokenizer = files.read_object(path, "a description of a model", {})
    described: Dict[str, Any] = {}
    for name in MODEL_FILES:
        path = os.path.join(folder, name)
        if files.exists(path):
            kinds = {"max_seq_length?": int, "do_lower_case?": bool}
            described = files.read_object(path, WHAT, kinds)
            break
    foreign_fields.check(described, foreign_fields.SENTENCE_MODEL, path)
    for name, expected in LAST_LAYER.items():
        if described.get(name) not in (None, expected):
            raise UserError(
                f"{path}: {name} is {described[name]!r:.80}, expected "
                f"{expected!r}: the last layer's outputs"
            )
    if described.get("do_lower_case") and not tokenizer.get("do_lower_case"):
        raise UserError(
            f"{path}: texts are lower-cased before a tokenizer that keeps "
            "capital letters, which is not done here"
        )
    length = described.get("max_seq_length")
    if length is None:
        length = tokenizer.get("model_max_length")
        # transformers write 1e30 for any length.
        length = length if type(length) is int and length < 10**9 else None
    if length is not None and length < 3:
        raise UserError(f"{path}: the longest input has {length} tokens")
    return length


def _read_pooling(path: str) -> str:
    """The pooling that a module's description names."""
    found = files.read_object(path, WHAT, {})
    foreign_fields.check(found, foreign_fields.SENTENCE_POOLING, path)
    modes: List[Any] = [mode for name, mode in MODES.items() if found.get(name)]
    named = found.get("pooling_mode", modes or "mean")
    modes = named if isinstance(named, list) else [named]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        named = ", ".join(map(str, modes))[:200]
        raise UserError(
            f"{path}: vectors are pooled by {named}, expected "
            f"{' or '.join(POOLINGS)}"
        )
    return modes[0]


def describe(pooled: Pooled, width: int) -> Dict[str, Any]:
    """The contents of the files of a folder, by their names.

    The model's own files lie next to these. Version 2 reads them, and all
    later ones.

    Args:
        pooled: how vectors are made.
        width: entries of a vector.
    """
    modules = [(MODEL, ""), (POOLING, f"1_{POOLING}")]
    if pooled.normalize:
        modules.append((NORMALIZE, f"2_{NORMALIZE}"))
    return {
        MODULES_FILE: [
            {
                "idx": number,
                "name": str(number),
                "path": place,
                "type": f"{PROGRAM}.models.{name}",
            }
            for number, (name, place) in enumerate(modules)
        ],
        MODEL_FILES[0]: {
            "max_seq_length": pooled.max_seq_length,
            "do_lower_case": False,
        },
        f"1_{POOLING}/{POOLING_FILE}": {
            "word_embedding_dimension": width,
            **{name: mode == pooled.pooling for name, mode in MODES.items()},
        },
        WHOLE_FILE: {"prompts": {}, "default_prompt_name": None},
    }
