"""Hugging Face's peft 0.21: LoRA, and (IA)^3 where it is the same function.

peft keeps no labels: by default they are named as transformers names them.
"""

import functools
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from errors import UserError
from exchange import fields, lora
from exchange.base import (
    QUESTIONS,
    Exported,
    Foreign,
    Head,
    Tensors,
    as_lora_number,
    check_layer,
    check_number,
    classifier,
    labels_in_order,
    task_of,
)
from exchange.peft_modules import (
    ROOT,
    by_pattern,
    check_saved,
    named,
    targeted,
)
from methods.base import TuningMethod
from methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from methods.lora import TARGETS, Lora
from modeling import BertConfig
from storage import files
from tasks.head_shape import POOLED, SPANS

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
CONFIG = {
    "peft_type": str,
    "task_type?": str,
    "r?": int,
    "lora_alpha?": float,
    "use_rslora?": bool,
    "alpha_pattern?": dict,
    "alpha_pattern?.*": float,
    "rank_pattern?": dict,
    "rank_pattern?.*": int,
    "modules_to_save?": list,
    "peft_version?": str,
}
# In the names of a state_dict, the adapter's own name.
ADAPTER_NAME = re.compile(
    r"(\.lora_[AB])\.[^.]+(?=\.weight$)|(\.ia3_l)\.[^.]+$"
    r"|\.modules_to_save\.[^.]+(?=\.)"
)
SEQUENCES, QUESTION_ANSWERS = "SEQ_CLS", "QUESTION_ANS"
# Kind of a task -> its head's tensors.
HEADS = {SEQUENCES: "classifier", QUESTION_ANSWERS: "qa_outputs"}
# Ways to begin that leave BERT's matrices as they are; from others, as `pissa`,
# peft takes what the update began with.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")


def is_one(folder: str) -> bool:
    """Whether the folder is an adapter of this program's."""
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        return False
    config = files.read_json(path, "an adapter's description")
    return isinstance(config, dict) and "peft_type" in config


def read(
    folder: str,
    config: BertConfig,
    pairs: Optional[bool] = None,
    labels: Sequence[str] = (),
) -> Foreign:
    """Reads an adapter with its head.

    Args:
        folder: as `save_pretrained` writes it.
        config: of the BERT that it was trained upon.
        pairs: whether its texts are pairs; None for either.
        labels: in the order of the logits; default: `LABEL_0`, ...

    Raises:
        UserError: it is damaged, a pickle, of another BERT, or computes what
            no method of this project's does.
    """
    path = os.path.join(folder, CONFIG_FILE)
    described = files.read_object(path, "peft's description", CONFIG)
    kind = described["peft_type"]
    readers = {
        "LORA": (_read_lora, fields.PEFT_LORA),
        "IA3": (_read_ia3, fields.PEFT_IA3),
    }
    if kind not in readers:
        raise UserError(
            f"{path}: peft's {kind} is not read; expected LORA, or IA3 that is "
            "the same function as this project's"
        )
    reader, known = readers[kind]
    fields.check(described, known, path)
    if described.get("bias", "none") != "none":
        raise UserError(
            f"{path}: BERT's own biases were trained too (bias="
            f"{described['bias']!r}), which is no method of this project; "
            "expected bias='none'"
        )
    tensors = Tensors(folder, WEIGHTS_FILE, PICKLE)
    _take_names(tensors)
    head = _read_head(described, tensors, config, tuple(labels), path)
    method, values = reader(described, tensors, config, path)
    tensors.check_all_taken()
    task, head_values = task_of(head, pairs)
    return Foreign(
        method,
        task,
        {**values, **head_values},
        {"program": "peft", "version": described.get("peft_version")},
    )


def _take_names(tensors: Tensors) -> None:
    """Gives the tensors of a state_dict the names of a saved adapter.

    Raises:
        UserError: BERT itself is among them, or a second adapter.
    """
    if any(".base_layer." in name for name in tensors.names):
        raise UserError(
            f"{tensors.path} holds BERT's own matrices too, as the state_dict "
            "of a whole model does; save the adapter and the head alone "
            "(model.save_pretrained)"
        )
    tensors.rename(
        lambda name: ADAPTER_NAME.sub(lambda m: m[1] or m[2] or "", name)
    )


def _places(
    described: Dict[str, Any],
    tensors: Tensors,
    part: str,
    config: BertConfig,
    path: str,
) -> List[Tuple[int, str, str]]:
    """(layer, name within it, module) of each module that has a part.

    Raises:
        UserError: the BERT has no such layer; or the modules are others than
            `target_modules` and the fields of its kind name.
    """
    pattern = re.compile(
        re.escape(ROOT)
        + r"((?:bert\.)?encoder\.layer\.(\d+)\.(.*))\."
        + re.escape(part)
    )
    matches = filter(None, map(pattern.fullmatch, tensors.names))
    places = [(int(m[2]), m[3], m[1]) for m in matches]
    for layer, _, _ in places:
        check_layer(layer, config, path)
    held = [
        name.removeprefix(ROOT).removesuffix(f".{part}")
        for name in tensors.names
        if name.endswith(f".{part}")
    ]
    root = "" if any(m.startswith("encoder.") for m in held) else "bert."
    # All matrices of BERT's, in the order of its layers.
    known = [
        f"{root}encoder.layer.{layer}." + scope.replace("/", ".")
        for layer in range(config.num_hidden_layers)
        for scope in TARGETS.values()
    ]
    # A model for questions has none.
    if described.get("task_type") == SEQUENCES:
        known.append(f"{root}pooler.dense")
    wanted = targeted(described, [*known, *held], path)
    for module in known:
        if module in wanted and module not in held:
            raise UserError(
                f"{path}: target_modules names {module}, of which "
                f"{WEIGHTS_FILE} holds nothing"
            )
    for module in held:
        if module not in wanted:
            raise UserError(
                f"{path}: {WEIGHTS_FILE} holds tensors of {module}, which "
                "target_modules and what limits it (exclude_modules, "
                "layers_to_transform, layers_pattern) leave out"
            )
    check_saved(described, tensors.names, config, path)
    return places


def _read_lora(described, tensors, config, path):
    """Updates by layer and matrix."""
    begun = described.get("init_lora_weights")
    if begun not in BEGINNINGS:
        raise UserError(
            f"{path}: init_lora_weights is {begun!r}, with which peft changes "
            "BERT's own matrices too; save it with "
            "path_initial_model_for_weight_conversion, which makes it LoRA"
        )
    targets = {s.replace("/", "."): name for name, s in TARGETS.items()}
    found = {}
    for key in ("r", "lora_alpha"):
        if described.get(key) is None:
            raise UserError(f"{path} has no {key}, which scales the updates")
    places = _places(described, tensors, "lora_A.weight", config, path)
    modules = [module for *_, module in places]
    alphas = by_pattern(described, "alpha_pattern", modules, path)
    ranks = by_pattern(described, "rank_pattern", modules, path)
    for layer, place, module in places:
        if place not in targets:
            raise UserError(f"{path}: LoRA at {module} is not read")
        down = tensors.take(f"{ROOT}{module}.lora_A.weight", None, None)
        up = tensors.take(f"{ROOT}{module}.lora_B.weight", None, len(down))
        rank = ranks.get(module, described["r"])
        if len(down) != rank:
            raise UserError(
                f"{path}: the update of {module} is of rank {len(down)} in "
                f"{WEIGHTS_FILE}, expected {rank} as r and rank_pattern say; "
                "the description contradicts the tensors"
            )
        alpha = alphas.get(module, described["lora_alpha"])
        check_number(alpha, f"{path}: lora_alpha")
        if described.get("use_rslora"):
            alpha *= len(down) ** 0.5
        found[layer, targets[place]] = lora.Factors(down.T, up.T, float(alpha))
    return lora.to_method(found, config, path)


def _read_ia3(described, tensors, config, path):
    """Scales of keys, of values and of what the last matrix reads."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {name: (hidden, 1) for name in KEY_VALUE}
    shapes[OUTPUT] = (1, inner)
    values = {
        f"bert/encoder/layer_{layer}/{name}/ia3_scale": np.ones(
            max(shape), np.float32
        )
        for layer in range(config.num_hidden_layers)
        for name, shape in shapes.items()
    }
    places = _places(described, tensors, "ia3_l", config, path)
    inputs = described.get("feedforward_modules")
    inputs = named(
        [OUTPUT.replace("/", ".")] if inputs is None else inputs,
        "feedforward_modules",
        [module for *_, module in places],
        path,
    )
    for layer, place, module in places:
        name = place.replace(".", "/")
        if name not in shapes:
            raise UserError(
                f"{path}: (IA)^3 scales {place} too, which this project's does "
                "not; peft's default does for BERT, since 'output.dense' is "
                "also in attention.output.dense; expected target_modules="
                r"'.*(key|value|layer\.\d+\.output\.dense)'"
            )
        scale = tensors.take(f"{ROOT}{module}.ia3_l", *shapes[name])
        if (module in inputs) != (name == OUTPUT):
            raise UserError(
                f"{path}: feedforward_modules says that the "
                f"{'inputs' if module in inputs else 'outputs'} of {module} "
                f"are scaled, but {WEIGHTS_FILE} has {list(scale.shape)}; the "
                "description contradicts the tensors"
            )
        key = f"bert/encoder/layer_{layer}/{name}/ia3_scale"
        values[key] = scale.ravel()
    return Ia3(), values


def _read_head(described, tensors, config, labels, path) -> Head:
    """The head, which peft trains beside the adapter."""
    kind = described.get("task_type")
    if kind not in HEADS:
        raise UserError(
            f"{path}: task_type is {kind!r}, expected {' or '.join(HEADS)}; "
            "an adapter without its task's head answers nothing"
        )
    name = f"{ROOT}{HEADS[kind]}"
    if f"{name}.weight" not in tensors.names:
        raise UserError(
            f"{tensors.path} holds no head ({name} is missing), so it answers "
            "nothing; save it with modules_to_save"
        )
    layer = tensors.take_layer(name, None, config.hidden_size)
    count = len(layer[0])
    if kind == QUESTION_ANSWERS:
        if count != 2:
            raise UserError(f"{path}: a question has 2 logits, not {count}")
        return Head(QUESTIONS, SPANS, (layer,))
    if labels and len(labels) != count:
        raise UserError(
            f"{path}: {len(labels)} labels are named, but the head has {count}"
        )
    return classifier(
        [layer], POOLED, labels or labels_in_order(None, count, path)
    )


def write(exported: Exported) -> Dict[str, Any]:
    """The files of an adapter.

    Returns:
        Contents by name: an object for JSON, or tensors by name.

    Raises:
        UserError: such a method or such a head is not written.
    """
    config, tensors = _write(exported.method, exported)
    head = exported.head
    questions = head.kind == QUESTIONS
    if head.shape != (SPANS if questions else POOLED):
        raise UserError(
            f"{exported.source}: a head of this form ({head.shape}) is not "
            "written for peft; write it for adapterhub"
        )
    kind = QUESTION_ANSWERS if questions else SEQUENCES
    weights, bias = head.layers[0]
    return {
        WEIGHTS_FILE: {
            **tensors,
            f"{ROOT}{HEADS[kind]}.weight": weights,
            f"{ROOT}{HEADS[kind]}.bias": bias,
        },
        CONFIG_FILE: {
            "base_model_name_or_path": exported.base_name,
            "task_type": kind,
            "inference_mode": True,
            "fan_in_fan_out": False,
            "modules_to_save": [HEADS[kind]],
            **config,
        },
    }


@functools.singledispatch
def _write(method: TuningMethod, exported: Exported):
    """The config and the tensors of a method.

    Raises:
        UserError: it is not written.
    """
    raise UserError(
        f"{exported.source}: {method.name} is not written for peft; expected "
        "lora or ia3"
    )


@_write.register
def _(method: Lora, exported: Exported):
    tensors = {}
    targets = method.targets.split(",")
    for layer in range(exported.config.num_hidden_layers):
        for target in targets:
            scope = f"encoder/layer_{layer}/{TARGETS[target]}"
            module = f"{ROOT}bert.{scope.replace('layer_', 'layer.')}"
            module = module.replace("/", ".")
            for part in "ab":
                tensors[f"{module}.lora_{part.upper()}.weight"] = exported.read(
                    f"bert/{scope}/lora_{part}"
                ).T
    config = {
        "peft_type": "LORA",
        "r": method.rank,
        "lora_alpha": as_lora_number(method.alpha),
        "lora_dropout": method.dropout,
        "bias": "none",
        "target_modules": _modules([TARGETS[target] for target in targets]),
    }
    return config, tensors


@_write.register
def _(method: Ia3, exported: Exported):
    tensors = {}
    for layer in range(exported.config.num_hidden_layers):
        for name in (*KEY_VALUE, OUTPUT):
            scope = f"bert/encoder/layer_{layer}/{name}"
            module = scope.replace("layer_", "layer.").replace("/", ".")
            scale = exported.read(f"{scope}/ia3_scale")
            scale = (
                scale[np.newaxis] if name == OUTPUT else scale[:, np.newaxis]
            )
            tensors[f"{ROOT}{module}.ia3_l"] = scale
    config = {
        "peft_type": "IA3",
        "target_modules": _modules([*KEY_VALUE, OUTPUT]),
        "feedforward_modules": _modules([OUTPUT]),
    }
    return config, tensors


def _modules(scopes: Sequence[str]) -> Any:
    """Modules of every layer, for peft: the ends of their names if they can."""
    ends = [scope.replace("/", ".") for scope in scopes]
    attention = "attention.output.dense"
    # A module is found whose name ends so, and the attention's would be.
    if "output.dense" in ends and attention not in ends:
        choices = "|".join(map(re.escape, ends))
        return rf".*\.layer\.\d+\.({choices})"
    return [end.replace("attention.self.", "") for end in ends]
