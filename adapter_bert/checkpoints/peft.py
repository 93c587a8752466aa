"""Hugging Face's peft 0.21: LoRA, and (IA)^3 where it is the same function.

peft keeps no labels: by default they are named as transformers names them. It
finds modules by the ends of their names, or by patterns of whole names, and may
give each matrix an update of another rank.
"""

import dataclasses
import functools
import itertools
import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.checkpoints.foreign import (
    QUESTIONS,
    Exported,
    Head,
    Tensors,
    as_lora_number,
    check_layer,
    check_number,
    make_head,
    unit_scales,
)
from adapter_bert.errors import UserError, first_line
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from adapter_bert.methods.lora import TARGETS, Lora
from adapter_bert.tasks.text_task import POOLED, SPANS


@dataclasses.dataclass(frozen=True)
class Factors:
    """The update `alpha / rank x A B` of a matrix.

    Attributes:
        down: A, float32 [inputs, rank].
        up: B, float32 [rank, outputs].
        alpha: of the scale.
    """

    down: np.ndarray
    up: np.ndarray
    alpha: float

    @property
    def rank(self) -> int:
        """Of the update."""
        return self.down.shape[1]


def to_method(
    found: Mapping[Tuple[int, str], Factors], config: BertConfig, source: str
) -> Tuple[Lora, Dict[str, np.ndarray]]:
    """The method and the variables of some updates.

    Updates of several ranks or scales, or of some layers only, are made equal:
    zeros are added, which change nothing, and the scale goes into B.

    Args:
        found: by layer and name of `adapter_bert.methods.lora.TARGETS`.
        config: of the BERT.
        source: the file, for messages.

    Raises:
        UserError: there is no update, or one is of no rank or of a matrix of
            another shape.
    """
    if not found:
        raise UserError(f"{source} holds no update of any matrix")
    targets = [name for name in TARGETS if any(t == name for _, t in found)]
    places = [
        (layer, target)
        for layer in range(config.num_hidden_layers)
        for target in targets
    ]
    ranks = {f.rank for f in found.values()}
    alphas = {f.alpha for f in found.values()}
    alike = set(places) == set(found) and len(ranks) == len(alphas) == 1
    rank = max(ranks)
    alpha = alphas.pop() if alike else float(rank)
    shapes = list_variables(config)
    scopes = {
        (layer, target): f"bert/encoder/layer_{layer}/{TARGETS[target]}"
        for layer, target in places
    }
    # Before room is made for what the file says.
    for place, own in found.items():
        scope = scopes[place]
        inputs, outputs = shapes[f"{scope}/kernel"]
        is_right = own.down.shape == (inputs, own.rank)
        is_right &= own.up.shape == (own.rank, outputs)
        if not is_right or not own.rank:
            raise UserError(
                f"{source}: the update of {scope} is {own.down.shape} times "
                f"{own.up.shape}, expected ({inputs}, r) times (r, {outputs}), "
                "r above 0; is it the adapter of another BERT?"
            )
    values = {}
    for place, scope in scopes.items():
        inputs, outputs = shapes[f"{scope}/kernel"]
        down = np.zeros((inputs, rank), np.float32)
        up = np.zeros((rank, outputs), np.float32)
        if place in found:
            own = found[place]
            scale = 1.0 if alike else own.alpha / own.rank
            down[:, : own.rank] = own.down
            up[: own.rank] = np.float32(scale) * own.up
        values[f"{scope}/lora_a"], values[f"{scope}/lora_b"] = down, up
    method = Lora(rank=rank, alpha=float(alpha), targets=",".join(targets))
    return method, values


# In front of a module's name, in the names of its tensors.
ROOT = "base_model.model."
# What peft takes for BERT where `target_modules` is null.
TARGETS_OF_BERT = {
    "LORA": ["query", "value"],
    "IA3": ["key", "value", "output.dense"],
}
ALL_LINEAR = "all-linear"
# Of a field, and letters of each; a large BERT has 144 matrices.
MOST_PATTERNS, LONGEST_PATTERN = 500, 500


def _check_saved(
    described: Mapping[str, Any],
    tensors: Sequence[str],
    config: BertConfig,
    path: str,
) -> None:
    """Refuses `modules_to_save` that name modules of BERT's without tensors."""
    modules = set()
    for variable in list_variables(config):
        parts = variable.replace("/layer_", "/layer/").split("/")
        modules.update(itertools.accumulate(parts, "{}.{}".format))
    for name in described.get("modules_to_save") or ():
        for module in modules:
            if module.endswith(str(name)) and not any(
                tensor.startswith(f"{ROOT}{module}.") for tensor in tensors
            ):
                raise UserError(
                    f"{path}: modules_to_save names {str(name)[:80]!r}, a "
                    "module of BERT's, but the file holds no tensors of it; "
                    "the description contradicts the tensors"
                )


def _targeted(
    described: Mapping[str, Any], modules: Sequence[str], path: str
) -> Set[str]:
    """The modules that a description names, as peft finds them.

    Source: peft, `check_target_module_exists`.

    Raises:
        UserError: none is named, or in a way that cannot be followed.
    """
    kind = described["peft_type"]
    targets = described.get("target_modules")
    if targets is None:
        targets = TARGETS_OF_BERT[kind]
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        targets = "(.*)"
    found = _named(targets, "target_modules", modules, path)
    left_out = _named(
        described.get("exclude_modules") or (), "exclude_modules", modules, path
    )
    layers = described.get("layers_to_transform")
    if isinstance(layers, int):
        layers = [layers]
    if not isinstance(layers, (list, type(None))):
        raise UserError(
            f"{path}: layers_to_transform is {layers!r}, expected a number or "
            "a list"
        )
    if layers:
        if isinstance(targets, str):
            raise UserError(
                f"{path}: layers_to_transform is {layers!r}, which peft takes "
                "only where target_modules is a list"
            )
        patterns = described.get("layers_pattern") or r"[^.]*"
        if isinstance(patterns, str):
            patterns = [patterns]
        _check_patterns(patterns, "layers_pattern", path)
        whole = "|".join(rf"(?:.*\.)?(?:{pattern})" for pattern in patterns)
        within = _matches(rf"(?:{whole})\.\d+\..*", modules, path)
        numbers = {
            module: int(re.search(r"\.(\d+)\.", module)[1])
            for module in itertools.compress(modules, within)
        }
        # A whole name stands for itself, in any layer.
        found = {
            module
            for module in found
            if module in targets
            or module in numbers
            and numbers[module] in layers
        }
    found -= left_out
    if not found:
        raise UserError(
            f"{path}: target_modules is {str(targets)[:80]!r}, which with its "
            "limits names no matrix of this BERT; is it of another model?"
        )
    if not isinstance(targets, str):
        _warn_of_idle(
            (
                end
                for end in targets
                if not any(f".{m}".endswith(f".{end}") for m in found)
            ),
            "target_modules",
            path,
        )
    return found


def _named(names: Any, key: str, modules: Sequence[str], path: str) -> Set[str]:
    """The modules that a pattern matches, or that end with names of a list."""
    if isinstance(names, str):
        return set(itertools.compress(modules, _matches(names, modules, path)))
    if isinstance(names, (list, tuple)):
        return {
            module
            for module in modules
            if any(f".{module}".endswith(f".{end}") for end in names)
        }
    raise UserError(f"{path}: {key} is {names!r}, expected a pattern or a list")


def _warn_of_idle(names: Iterable[Any], key: str, path: str) -> None:
    """Says which names or patterns of a field act on nothing."""
    idle = ", ".join(repr(name) for name in names)
    if idle:
        logging.warning(
            "%s: in %s these act on no module: %s", path, key, idle[:200]
        )


def _matches(pattern: str, texts: Sequence[str], path: str) -> List[bool]:
    """Whether a pattern of a description is that of each whole text.

    TensorFlow's engine (RE2) takes time in proportion to both. Python's could
    take for ever with a bad pattern.
    """
    try:
        # What is under `tf.strings` keeps all patterns in memory.
        found = tf.raw_ops.RegexFullMatch(input=list(texts), pattern=pattern)
    except tf.errors.OpError as error:
        raise UserError(
            f"{path}: {pattern[:80]!r} is no regular expression that can be "
            f"used here: {first_line(error)}; name the modules in a list"
        ) from error
    return found.numpy().tolist()


def _check_patterns(patterns: Any, key: str, path: str) -> None:
    """Refuses patterns that are too many, or that may take long."""
    if not isinstance(patterns, list):
        raise UserError(f"{path}: {key} is {patterns!r}, expected a list")
    if len(patterns) > MOST_PATTERNS:
        raise UserError(
            f"{path}: {key} has {len(patterns)} patterns, expected at most "
            f"{MOST_PATTERNS}"
        )
    for pattern in patterns:
        # One that counts repetitions may take a tenth of a second.
        if (
            not isinstance(pattern, str)
            or "{" in pattern
            or len(pattern) > LONGEST_PATTERN
        ):
            raise UserError(
                f"{path}: {key} has {str(pattern)[:80]!r}, expected at most "
                f"{LONGEST_PATTERN} letters, without {{}}"
            )


def _by_pattern(
    described: Mapping[str, Any], key: str, modules: Sequence[str], path: str
) -> Dict[str, Any]:
    """The value of each module that a pattern of a field matches.

    Source: peft, `get_pattern_key`: the first pattern that ends the name.
    """
    patterns = described.get(key) or {}
    _check_patterns(list(patterns), key, path)
    found: Dict[str, Any] = {}
    idle = []
    for pattern, value in patterns.items():
        left = [module for module in modules if module not in found]
        # The rest is for no module, whatever it is.
        fits = left and _matches(rf"(.*\.)?({pattern})", left, path)
        own = dict.fromkeys(itertools.compress(left, fits), value)
        found.update(own)
        idle.extend([] if own else [pattern])
    _warn_of_idle(idle, key, path)
    return found


CONFIG_FILE = "adapter_config.json"
# A key of the description that no other program's has.
MARK = "peft_type"
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


def read(
    path: str, config: BertConfig, labels: Tuple[str, ...]
) -> Tuple[TuningMethod, Dict[str, np.ndarray], Head, Dict[str, Any]]:
    """Reads an adapter with its head.

    Args:
        path: of the description, in a folder as `save_pretrained` writes it.
        config: of the BERT on which the adapter was trained.
        labels: in the order of the logits; default: `LABEL_0`, ...

    Returns:
        The method, its float32 variables by name, the head, and the version.

    Raises:
        UserError: the adapter is damaged, a pickle, of another BERT, or
            computes what no method of this project's does.
    """
    described = files.read_object(path, "peft's description", CONFIG)
    kind = described["peft_type"]
    readers = {
        "LORA": (_read_lora, foreign_fields.PEFT_LORA),
        "IA3": (_read_ia3, foreign_fields.PEFT_IA3),
    }
    if kind not in readers:
        raise UserError(
            f"{path}: peft's {kind} is not read; expected LORA, or IA3 that is "
            "the same function as this project's"
        )
    reader, known = readers[kind]
    foreign_fields.check(described, known, path)
    if described.get("bias", "none") != "none":
        raise UserError(
            f"{path}: BERT's own biases were trained too (bias="
            f"{described['bias']!r}), which is no method of this project; "
            "expected bias='none'"
        )
    tensors = Tensors(os.path.dirname(path), WEIGHTS_FILE, PICKLE)
    if any(".base_layer." in name for name in tensors.names):
        raise UserError(
            f"{tensors.path} holds BERT's own matrices too, as the state_dict "
            "of a whole model does; save the adapter and the head alone "
            "(model.save_pretrained)"
        )
    # Those of a state_dict get the names of a saved adapter.
    tensors.rename(
        lambda name: ADAPTER_NAME.sub(lambda m: m[1] or m[2] or "", name)
    )
    head = _read_head(described, tensors, config, labels, path)
    method, values = reader(described, tensors, config, path)
    tensors.check_all_taken()
    return method, values, head, {"version": described.get("peft_version")}


def _places(
    described: Dict[str, Any],
    tensors: Tensors,
    part: str,
    config: BertConfig,
    path: str,
) -> List[Tuple[int, str, str]]:
    """(layer, name within the layer, module) of each module that has a part.

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
    wanted = _targeted(described, [*known, *held], path)
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
    _check_saved(described, tensors.names, config, path)
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
    alphas = _by_pattern(described, "alpha_pattern", modules, path)
    ranks = _by_pattern(described, "rank_pattern", modules, path)
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
        found[layer, targets[place]] = Factors(down.T, up.T, float(alpha))
    return to_method(found, config, path)


def _read_ia3(described, tensors, config, path):
    """Scales of keys, of values and of what the last matrix reads."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {name: (hidden, 1) for name in KEY_VALUE}
    shapes[OUTPUT] = (1, inner)
    values = unit_scales(config)
    places = _places(described, tensors, "ia3_l", config, path)
    inputs = described.get("feedforward_modules")
    inputs = _named(
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
    return make_head(
        kind == QUESTION_ANSWERS, [layer], POOLED, None, labels, path
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
    """The config and the tensors of a method, if it is written."""
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
            scope = f"bert/encoder/layer_{layer}/{TARGETS[target]}"
            module = scope.replace("layer_", "layer.").replace("/", ".")
            for part in "AB":
                value = exported.read(f"{scope}/lora_{part.lower()}")
                tensors[f"{ROOT}{module}.lora_{part}.weight"] = value.T
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
            shape = (1, -1) if name == OUTPUT else (-1, 1)
            scale = exported.read(f"{scope}/ia3_scale")
            tensors[f"{ROOT}{module}.ia3_l"] = scale.reshape(shape)
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
