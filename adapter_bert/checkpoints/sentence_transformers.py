"""Folders of sentence-transformers: a BERT, and how its vectors are made.

`modules.json` lists the modules that compute one after the other, each in a
folder of its own: the model of transformers, the pooling of its last layer's
outputs, dense layers, and what gives vectors the length 1.

Source: sentence-transformers 5.7.0 (`SentenceTransformer`, its modules
`Transformer`, `Pooling`, `Dense` and `Normalize`), and the fields of version 2.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from adapter_bert import files
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.checkpoints.foreign_tensors import Tensors
from adapter_bert.data.added_tokens import TOKENIZER_CONFIG_FILE
from adapter_bert.errors import UserError
from adapter_bert.tasks.vector_form import (
    CLS,
    DOCUMENT,
    MEAN,
    QUERY,
    Dense,
    Pooled,
)

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
CROSS_ENCODER = "CrossEncoder"
KNOWN = MODEL, POOLING, NORMALIZE, DENSE = (
    "Transformer",
    "Pooling",
    "Normalize",
    "Dense",
)
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
POOLINGS = (CLS, MEAN)
WEIGHTS_FILE, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
# The end of PyTorch's name -> one of `functional.ACTIVATIONS`.
ACTIVATIONS = {
    "linear.Identity": "linear",
    "activation.Tanh": "tanh",
    "activation.ReLU": "relu",
    "activation.ReLU6": "relu6",
    "activation.GELU": "gelu_erf",
    "activation.SiLU": "swish",
    "activation.Sigmoid": "sigmoid",
    "activation.Mish": "mish",
    "activation.LeakyReLU": "leaky_relu",
}
TORCH = "torch.nn.modules."
OF_VECTORS = "sentence_embedding"
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


def is_folder(path: str) -> bool:
    """Tells if sentence-transformers has written a folder."""
    return files.exists(os.path.join(path, MODULES_FILE))


def places(folder: str) -> list[str]:
    """Lists the folders of the modules in a folder; none in another folder."""
    if not is_folder(folder):
        return []
    return _modules(os.path.join(folder, MODULES_FILE))[0]


def read(folder: str) -> tuple[str, Pooled]:
    """Finds a model of transformers, and reads how its vectors are made."""
    path = os.path.join(folder, MODULES_FILE)
    inside, names = _modules(path)
    further = names[2:]
    # A length of 1 before a dense layer would change what that computes.
    kinds = [name == NORMALIZE for name in further]
    is_read = {*further} <= {DENSE, NORMALIZE} and kinds == sorted(kinds)
    if names[:2] != [MODEL, POOLING] or not is_read:
        raise UserError(
            f"{path}: the modules are {', '.join(names)[:200] or 'missing'}; "
            f"known are {MODEL}, {POOLING}, then any {DENSE}, then "
            f"{NORMALIZE} or nothing"
        )
    path = os.path.join(folder, WHOLE_FILE)
    about = _read_whole(path) if files.exists(path) else {}
    place = os.path.join(folder, inside[0])
    length = _read_model(place)
    dense = tuple(
        _read_dense(os.path.join(folder, where))
        for where, name in zip(inside, names)
        if name == DENSE
    )
    for before, after in zip(dense, dense[1:]):
        if before.out_features != after.in_features:
            raise UserError(
                f"{folder}: a dense layer has {before.out_features} outputs, "
                f"but the next one {after.in_features} inputs"
            )
    path = os.path.join(folder, inside[1], POOLING_FILE)
    return place, Pooled(
        normalize=NORMALIZE in names,
        max_seq_length=length,
        dense=dense,
        **_read_pooling(path),
        **about,
    )


def check_width(folder: str, pooled: Pooled, width: int) -> None:
    """Refuses a first dense layer that does not read the model's vectors."""
    if pooled.dense and pooled.dense[0].in_features != width:
        raise UserError(
            f"{folder}: the first dense layer has "
            f"{pooled.dense[0].in_features} inputs, but the model's vectors "
            f"have {width} entries"
        )


def _modules(path: str) -> tuple[list[str], list[str]]:
    listed = files.read_json(path, WHAT)
    inside, names = [], []
    for module in listed if isinstance(listed, list) else []:
        fields = module if isinstance(module, dict) else {}
        kind, place = fields.get("type"), fields.get("path")
        first, _, name = str(kind).rpartition(".")
        is_of_program = first.split(".")[0] == PROGRAM
        names.append(name if is_of_program and name in KNOWN else str(kind))
        is_inside = isinstance(place, str) and not (
            os.path.isabs(place) or os.pardir in place.split("/")
        )
        if not is_inside:
            raise UserError(
                f"{path}: the folder of a module is {place!r:.80}, expected "
                "one in this folder"
            )
        inside.append(place)
    return inside, names


def _read_whole(path: str) -> dict[str, Any]:
    described = files.read_object(
        path,
        WHAT,
        {
            "default_prompt_name?": str,
            "prompts?": dict,
            "prompts?.*": str,
            "similarity_fn_name?": str,
        },
    )
    foreign_fields.check(described, foreign_fields.SENTENCE, path)
    kind = described.get("model_type")
    if kind not in (None, "SentenceTransformer"):
        raise UserError(
            f"{path}: model_type is {kind!r:.80}, expected SentenceTransformer"
        )
    prompts = described.get("prompts") or {}
    default = described.get("default_prompt_name") or None
    if default is not None and default not in prompts:
        raise UserError(
            f"{path}: default_prompt_name is {default[:80]!r}, expected one "
            f"of prompts: {', '.join(prompts)[:200] or 'none'}"
        )
    has_both = default == QUERY and DOCUMENT in prompts
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "document_prompt": DOCUMENT if has_both else None,
        "similarity_fn_name": described.get("similarity_fn_name") or None,
    }


def _read_dense(folder: str) -> Dense:
    path = os.path.join(folder, POOLING_FILE)
    described = files.read_object(
        path,
        WHAT,
        {"in_features": int, "out_features": int, "bias?": bool},
    )
    foreign_fields.check(described, foreign_fields.SENTENCE_DENSE, path)
    for name in ("module_input_name", "module_output_name"):
        if described.get(name) not in (None, OF_VECTORS):
            raise UserError(
                f"{path}: {name} is {described[name]!r:.80}, "
                f"expected {OF_VECTORS}"
            )
    default = f"{TORCH}activation.Tanh"
    kind = str(described.get("activation_function", default))
    activation = ACTIVATIONS.get(kind.removeprefix(TORCH))
    if activation is None:
        raise UserError(
            f"{path}: activation_function is {kind[:80]!r}, expected one of "
            f"{TORCH}{', '.join(ACTIVATIONS)}"
        )
    bias = described.get("bias", True) is not False
    sizes = described["in_features"], described["out_features"]
    tensors = Tensors(folder, WEIGHTS_FILE, TORCH_FILE)
    kernel, offset = tensors.take_layer("linear", *sizes[::-1], bias)
    tensors.check_all_taken()
    values = (kernel.T,) if offset is None else (kernel.T, offset)
    return Dense(*sizes, bias, activation, values)


def _read_model(
    folder: str,
    outputs: Mapping[str, Any] = LAST_LAYER,
    names: Sequence[str] = MODEL_FILES,
) -> Optional[int]:
    path = os.path.join(folder, TOKENIZER_CONFIG_FILE)
    tokenizer = files.read_optional(path, "a description of a model", {})
    described: dict[str, Any] = {}
    for name in names:
        path = os.path.join(folder, name)
        if files.exists(path):
            kinds = {"max_seq_length?": int, "do_lower_case?": bool}
            described = files.read_object(path, WHAT, kinds)
            break
    foreign_fields.check(described, foreign_fields.SENTENCE_MODEL, path)
    for name, expected in outputs.items():
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


def read_cross_encoder(folder: str) -> Optional[int]:
    """Reads a cross-encoder's longest input in tokens, if its files say it.

    Files of another kind of model have no effect, as in `CrossEncoder`.
    """
    path, about = os.path.join(folder, WHOLE_FILE), {}
    if is_folder(folder) and files.exists(path):
        kinds = {"default_prompt_name?": str, "prompts?": dict}
        about = files.read_object(path, WHAT, kinds)
    if about.get("model_type") != CROSS_ENCODER:
        return _read_model(folder, {}, ())
    default, prompts = about.get("default_prompt_name"), about.get("prompts")
    if default is not None and (prompts or {}).get(default, default):
        raise UserError(
            f"{path}: default_prompt_name is {default[:80]!r}, a text before "
            "each query, which is not put there here; expected none"
        )
    return _read_model(folder, {})


def _read_pooling(path: str) -> dict[str, Any]:
    described = files.read_object(path, WHAT, {})
    foreign_fields.check(described, foreign_fields.SENTENCE_POOLING, path)
    modes: list[Any] = [
        mode for name, mode in MODES.items() if described.get(name)
    ]
    named = described.get("pooling_mode", modes or "mean")
    modes = named if isinstance(named, list) else [named]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        named = ", ".join(map(str, modes))[:200]
        raise UserError(
            f"{path}: vectors are pooled by {named}, expected "
            f"{' or '.join(POOLINGS)}"
        )
    include = described.get("include_prompt", True) is not False
    return {"pooling": modes[0], "include_prompt": include}


def describe(pooled: Pooled, width: int) -> dict[str, Any]:
    """Gives the contents of the files of a folder, by their names.

    The model's own files lie next to these. Version 2 reads them, and all
    later ones. Weights are float32 arrays by name, all else is JSON.

    Args:
        pooled: how vectors are made.
        width: entries of a vector.
    """
    modules = [(MODEL, ""), (POOLING, f"1_{POOLING}")]
    kinds = [DENSE] * len(pooled.dense) + [NORMALIZE] * pooled.normalize
    modules += [(kind, f"{n}_{kind}") for n, kind in enumerate(kinds, 2)]
    contents: dict[str, Any] = {}
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    for layer, (_, place) in zip(pooled.dense, modules[2:]):
        contents[f"{place}/{POOLING_FILE}"] = {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": layer.bias,
            "activation_function": TORCH + names[layer.activation],
        }
        tensors = zip(("linear.weight", "linear.bias"), layer.values)
        contents[f"{place}/{WEIGHTS_FILE}"] = {
            name: np.ascontiguousarray(value.T) for name, value in tensors
        }
    pooling = {
        "word_embedding_dimension": width,
        **{name: mode == pooled.pooling for name, mode in MODES.items()},
    }
    if not pooled.include_prompt:
        pooling["include_prompt"] = False
    whole = {
        "prompts": dict(pooled.prompts),
        "default_prompt_name": pooled.default_prompt_name,
    }
    if pooled.similarity_fn_name:
        whole["similarity_fn_name"] = pooled.similarity_fn_name
    return {
        **contents,
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
        f"1_{POOLING}/{POOLING_FILE}": pooling,
        WHOLE_FILE: whole,
    }
