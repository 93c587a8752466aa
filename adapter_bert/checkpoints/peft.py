"""Hugging Face's peft 0.21: LoRA, and (IA)^3 where it is the same function.

peft keeps no labels: they are named as transformers names them, or as a config
of transformers' says that lies in the folder. peft finds modules by the ends of
their names, or by patterns of whole names, and may give each matrix an update
of another rank.
"""

import itertools
import os
import re
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
)

import numpy as np
import tensorflow as tf
from absl import logging

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints import foreign_fields, foreign_heads
from adapter_bert.checkpoints.foreign_base import (
    Adapter,
    Exported,
    Head,
    Tensors,
    as_lora_number,
    check_depth,
    check_number,
    module_of,
    unit_scales,
    usual_shape,
)
from adapter_bert.checkpoints.foreign_heads import Told
from adapter_bert.checkpoints.hugging_face import describe_head, kind_of_head
from adapter_bert.errors import UserError, first_line
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from adapter_bert.methods.lora import TARGETS, Lora
from adapter_bert.tasks.kinds import CHOICE, MASKED_LM, QUESTIONS, TAGGING

CONFIG_FILE = "adapter_config.json"
# A key that only this program's descriptions have.
MARK = "peft_type"
WEIGHTS_FILE, TORCH_FILE = "adapter_model.safetensors", "adapter_model.bin"
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
    "auto_mapping?": dict,
    "auto_mapping?.base_model_class?": str,
    "peft_version?": str,
}
# The adapter's own name within names of a state_dict.
ADAPTER_NAME = re.compile(
    r"(\.lora_[AB])\.[^.]+(?=\.weight$)|(\.ia3_l)\.[^.]+$"
    r"|\.modules_to_save\.[^.]+(?=\.)"
)
SEQUENCES = "SEQ_CLS"
# Type of a task -> kind of its head, and back.
TASKS = {
    SEQUENCES: foreign_heads.ANY_OF_TEXTS,
    "TOKEN_CLS": TAGGING,
    "QUESTION_ANS": QUESTIONS,
}
TASK_OF_KIND = {
    **{kind: task for task, kind in TASKS.items()},
    **dict.fromkeys(foreign_heads.OF_TEXTS, SEQUENCES),
}
# transformers' config, which this project and some users save in the folder.
MODEL_CONFIG_FILE = "config.json"
MODEL_CONFIG = {
    "id2label?": dict,
    "id2label?.*": str,
    f"{foreign_heads.THRESHOLD}?": float,
}
# Initializations that leave BERT's matrices as they are; from others, as
# `pissa`, peft takes what the update began with.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
# Variable -> tensor, in a module whose name is behind `ROOT`.
TENSORS = {
    "lora_a": "lora_A.weight",
    "lora_b": "lora_B.weight",
    "ia3_scale": "ia3_l",
}
ROOT = "base_model.model."
# What peft takes for BERT where `target_modules` is null.
TARGETS_OF_BERT = {
    "LORA": ["query", "value"],
    "IA3": ["key", "value", "output.dense"],
}
ALL_LINEAR = "all-linear"
# Of a field, and letters of each; a large BERT has 144 matrices.
MOST_PATTERNS, LONGEST_PATTERN = 500, 500


class Factors(NamedTuple):
    """The update `alpha / rank x A B` of a matrix.

    Attributes:
        down: A, float32 [inputs, rank].
        up: B, float32 [rank, outputs].
        alpha: of the scale.
    """

    down: np.ndarray
    up: np.ndarray
    alpha: float


def to_method(
    found: Mapping[Tuple[int, str], Factors], config: BertConfig, source: str
) -> Tuple[Lora, Dict[str, np.ndarray]]:
    """The method and the variables of updates by layer and name of `TARGETS`.

    Updates of several ranks or scales, or of some layers only, are made equal:
    zeros are added, which change nothing, and the scale goes into B. Raises
    UserError if there is no update, or one is of no rank or of a matrix of
    another shape.
    """
    if not found:
        raise UserError(f"{source} holds no update of any matrix")
    targets = [name for name in TARGETS if any(t == name for _, t in found)]
    scopes = {
        (layer, target): f"bert/encoder/layer_{layer}/{TARGETS[target]}"
        for layer in range(config.num_hidden_layers)
        for target in targets
    }
    shapes = list_variables(config)
    # Before room is made for what the file says.
    for place, (down, up, _) in found.items():
        inputs, outputs = shapes[f"{scopes[place]}/kernel"]
        rank = down.shape[1]
        if not rank or (*down.shape, *up.shape) != (
            inputs,
            rank,
            rank,
            outputs,
        ):
            raise UserError(
                f"{source}: the update of {scopes[place]} is {down.shape} "
                f"times {up.shape}, expected ({inputs}, r) times (r, "
                f"{outputs}), r above 0; is it the adapter of another BERT?"
            )
    ranks = {len(up) for _, up, _ in found.values()}
    alphas = {alpha for *_, alpha in found.values()}
    alike = set(scopes) == set(found) and len(ranks) == len(alphas) == 1
    rank = max(ranks)
    values = {}
    for place, scope in scopes.items():
        inputs, outputs = shapes[f"{scope}/kernel"]
        values[f"{scope}/lora_a"] = a = np.zeros((inputs, rank), np.float32)
        values[f"{scope}/lora_b"] = b = np.zeros((rank, outputs), np.float32)
        if place in found:
            down, up, alpha = found[place]
            a[:, : len(up)] = down
            b[: len(up)] = up if alike else np.float32(alpha / len(up)) * up
    alpha = alphas.pop() if alike else float(rank)
    return Lora(rank=rank, alpha=alpha, targets=",".join(targets)), values


def _check_saved(adapter: Adapter) -> None:
    """Refuses `modules_to_save` that name modules of BERT without tensors."""
    described, tensors, config, path, _ = adapter
    modules = set()
    for variable in list_variables(config):
        parts = module_of(variable).split(".")
        modules.update(itertools.accumulate(parts, "{}.{}".format))
    for name in described.get("modules_to_save") or ():
        for module in modules:
            if module.endswith(str(name)) and not any(
                tensor.startswith(f"{ROOT}{module}.")
                for tensor in tensors.names
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
    """
    targets = described.get("target_modules")
    if targets is None:
        targets = TARGETS_OF_BERT[described["peft_type"]]
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
        chosen = {
            module
            for module in itertools.compress(modules, within)
            if int(re.search(r"\.(\d+)\.", module)[1]) in layers
        }
        # A whole name stands for itself, in any layer.
        chosen.update(module for module in found if module in targets)
        found &= chosen
    found -= left_out
    if not found:
        raise UserError(
            f"{path}: target_modules is {str(targets)[:80]!r}, which with its "
            "limits names no matrix of this BERT; is it of another model?"
        )
    if not isinstance(targets, str):
        idle = [end for end in targets if not _ending(found, [end])]
        _warn_of_idle(idle, "target_modules", path)
    return found


def _named(names: Any, key: str, modules: Sequence[str], path: str) -> Set[str]:
    """The modules that a pattern matches, or that end with names of a list."""
    if isinstance(names, str):
        return set(itertools.compress(modules, _matches(names, modules, path)))
    if isinstance(names, (list, tuple)):
        return _ending(modules, names)
    raise UserError(f"{path}: {key} is {names!r}, expected a pattern or a list")


def _ending(modules: Iterable[str], ends: Iterable[Any]) -> Set[str]:
    """The modules whose last names are one of `ends`."""
    ends = tuple(f".{end}" for end in ends)
    return {module for module in modules if f".{module}".endswith(ends)}


def _warn_of_idle(names: Sequence[Any], key: str, path: str) -> None:
    """Logs the names or patterns of a field that act on nothing."""
    if names:
        idle = ", ".join(map(repr, names))
        logging.warning(
            "%s: in %s these act on no module: %s", path, key, idle[:200]
        )


def _matches(pattern: str, texts: Sequence[str], path: str) -> List[bool]:
    """Whether a pattern matches each whole text.

    RE2, TensorFlow's engine, takes linear time. Python's engine could take
    exponential time.
    """
    try:
        # Functions of `tf.strings` keep all patterns in memory.
        found = tf.raw_ops.RegexFullMatch(input=list(texts), pattern=pattern)
    except tf.errors.OpError as error:
        raise UserError(
            f"{path}: {pattern[:80]!r} is no regular expression that can be "
            f"used here: {first_line(error)}; name the modules in a list"
        ) from error
    return found.numpy().tolist()


def _check_patterns(patterns: Any, key: str, path: str) -> None:
    """Refuses too many patterns, and those that may take long."""
    if not isinstance(patterns, list):
        raise UserError(f"{path}: {key} is {patterns!r}, expected a list")
    if len(patterns) > MOST_PATTERNS:
        raise UserError(
            f"{path}: {key} has {len(patterns)} patterns, expected at most "
            f"{MOST_PATTERNS}"
        )
    for pattern in patterns:
        # Counted repetitions may take a tenth of a second.
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

    Source: peft, `get_pattern_key`: the first pattern that ends the name holds.
    """
    patterns = described.get(key) or {}
    _check_patterns(list(patterns), key, path)
    found: Dict[str, Any] = {}
    idle = []
    for pattern, value in patterns.items():
        left = [module for module in modules if module not in found]
        # With all modules found, later patterns are not looked at.
        fits = left and _matches(rf"(.*\.)?({pattern})", left, path)
        if not any(fits):
            idle.append(pattern)
        found.update(dict.fromkeys(itertools.compress(left, fits), value))
    _warn_of_idle(idle, key, path)
    return found


def read(
    path: str, config: BertConfig, told: Told
) -> Tuple[TuningMethod, Dict[str, np.ndarray], Head, Dict[str, Any]]:
    """Reads an adapter of `save_pretrained`, as `foreign_adapters` wants it."""
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
    tensors = Tensors(os.path.dirname(path), WEIGHTS_FILE, TORCH_FILE)
    if any(".base_layer." in name for name in tensors.names):
        raise UserError(
            f"{tensors.path} holds BERT's own matrices too, as the state_dict "
            "of a whole model does; save the adapter and the head alone "
            "(model.save_pretrained)"
        )
    # Names of a state_dict become those of a saved adapter.
    tensors.rename(
        lambda name: ADAPTER_NAME.sub(lambda m: m[1] or m[2] or "", name)
    )
    check_depth(tensors.names, config, path)
    adapter = Adapter(described, tensors, config, path)
    head = _read_head(adapter, told)
    method, values = reader(adapter)
    tensors.check_all_taken()
    return method, values, head, {"version": described.get("peft_version")}


def _places(adapter: Adapter, part: str) -> List[Tuple[int, str, str]]:
    """(layer, name within the layer, module) of each module that has a part.

    Raises UserError if the description names other modules.
    """
    described, tensors, config, path, _ = adapter
    held = [
        name.removeprefix(ROOT).removesuffix(f".{part}")
        for name in tensors.names
        if name.endswith(f".{part}")
    ]
    pattern = re.compile(r"(?:bert\.)?encoder\.layer\.(\d+)\.(.*)")
    matches = filter(None, map(pattern.fullmatch, held))
    places = [(int(m[1]), m[2], m[0]) for m in matches]
    root = "" if any(m.startswith("encoder.") for m in held) else "bert."
    # All matrices of BERT, in the order of its layers.
    known = [
        f"{root}encoder.layer.{layer}." + scope.replace("/", ".")
        for layer in range(config.num_hidden_layers)
        for scope in TARGETS.values()
    ]
    # A model for questions has no pooler.
    if described.get("task_type") == SEQUENCES:
        known.append(f"{root}pooler.dense")
    wanted = _targeted(described, [*known, *held], path)
    for module in known:
        if module in wanted and module not in held:
            raise UserError(
                f"{path}: target_modules names {module}, but "
                f"{WEIGHTS_FILE} holds nothing for it"
            )
    for module in held:
        if module not in wanted:
            raise UserError(
                f"{path}: {WEIGHTS_FILE} holds tensors of {module}, which "
                "target_modules and what limits it (exclude_modules, "
                "layers_to_transform, layers_pattern) leave out"
            )
    _check_saved(adapter)
    return places


def _read_lora(adapter: Adapter):
    """Updates by layer and matrix."""
    described, tensors, config, path, _ = adapter
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
    places = _places(adapter, "lora_A.weight")
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


def _read_ia3(adapter: Adapter):
    """Scales of keys, of values and of the last matrix's inputs."""
    described, tensors, config, path, _ = adapter
    values = unit_scales(config)
    places = _places(adapter, "ia3_l")
    inputs = described.get("feedforward_modules")
    inputs = _named(
        [OUTPUT.replace("/", ".")] if inputs is None else inputs,
        "feedforward_modules",
        [module for *_, module in places],
        path,
    )
    for layer, place, module in places:
        name = place.replace(".", "/")
        variable = f"bert/encoder/layer_{layer}/{name}/ia3_scale"
        if variable not in values:
            raise UserError(
                f"{path}: (IA)^3 scales {place} too, which this project's does "
                "not; peft's default does for BERT, since 'output.dense' is "
                "also in attention.output.dense; expected target_modules="
                r"'.*(key|value|layer\.\d+\.output\.dense)'"
            )
        shape = _scale_shape(name, values[variable].size)
        scale = tensors.take(f"{ROOT}{module}.ia3_l", *shape)
        if (module in inputs) != (name == OUTPUT):
            raise UserError(
                f"{path}: feedforward_modules says that the "
                f"{'inputs' if module in inputs else 'outputs'} of {module} "
                f"are scaled, but {WEIGHTS_FILE} has {list(scale.shape)}; the "
                "description contradicts the tensors"
            )
        values[variable] = scale.ravel()
    return Ia3(), values


def _read_head(adapter: Adapter, told: Told) -> Head:
    """The head, which peft trains next to the adapter.

    Its kind is that of the class of the model, which peft writes for a task of
    no type, or which a config in the folder names.
    """
    described, tensors, config, path, _ = adapter
    place = os.path.join(os.path.dirname(path), MODEL_CONFIG_FILE)
    model: Dict[str, Any] = {}
    if files.exists(place):
        model = files.read_object(place, "a model's config", MODEL_CONFIG)
    kind = _kind_of_head(described, model, path)
    # transformers may leave another `label2id` as it was.
    model["label2id"] = None
    if model.get("id2label"):
        named = model["id2label"].items()
        model["label2id"] = {label: number for number, label in named}
    if kind == MASKED_LM:
        return foreign_heads.read_masked_lm(tensors, config, path, ROOT)
    name = f"{ROOT}{foreign_heads.MODULES[kind]}"
    if f"{name}.weight" not in tensors.names:
        raise UserError(
            f"{tensors.path} holds no head ({name} is missing), so it answers "
            "nothing; save it with modules_to_save"
        )
    return foreign_heads.read_dense(
        kind, tensors, config, model, told, path, ROOT
    )


def _kind_of_head(
    described: Mapping[str, Any], model: Mapping[str, Any], path: str
) -> str:
    """The kind of a head; raises UserError if it is not said, or twice."""
    task = described.get("task_type")
    mapping = described.get("auto_mapping") or {}
    own = foreign_heads.KINDS.get(mapping.get("base_model_class"))
    found = TASKS.get(task, own)
    in_config = kind_of_head(model)
    if found is not None and in_config in (MASKED_LM, "pretraining"):
        # What the base was, before it got its head.
        in_config = ""
    if found is None and not task:
        found = in_config or None
    if found is None:
        raise UserError(
            f"{path}: task_type is {task!r}, and auto_mapping names no class "
            f"of BERT's with a head; expected {' or '.join(TASKS)}; an adapter "
            "without its task's head answers nothing"
        )
    if in_config and in_config != found:
        if found != foreign_heads.ANY_OF_TEXTS or (
            in_config not in foreign_heads.OF_TEXTS
        ):
            raise UserError(
                f"{path} is of {found or 'texts'}, but {MODEL_CONFIG_FILE} "
                f"next to it of {in_config}; delete the wrong one"
            )
        found = in_config
    return found


def write(exported: Exported) -> Dict[str, Any]:
    """The contents of an adapter's files, as `foreign_adapters` wants them."""
    method = exported.method
    if isinstance(method, Lora):
        names = [TARGETS[target] for target in method.targets.split(",")]
        config = {
            "peft_type": "LORA",
            "r": method.rank,
            "lora_alpha": as_lora_number(method.alpha),
            "lora_dropout": method.dropout,
            "bias": "none",
            "target_modules": _modules(names),
        }
    elif isinstance(method, Ia3):
        config = {
            "peft_type": "IA3",
            "target_modules": _modules((*KEY_VALUE, OUTPUT)),
            "feedforward_modules": _modules([OUTPUT]),
        }
    else:
        raise UserError(
            f"{exported.source}: {method.name} is not written for peft; "
            "expected lora or ia3"
        )
    head, tensors = exported.head, {}
    if head.shape != usual_shape(head.kind):
        raise UserError(
            f"{exported.source}: a head of this form ({head.shape}) is not "
            "written for peft; write it for adapterhub"
        )
    module = foreign_heads.MODULES[head.kind]
    if head.kind == MASKED_LM:
        if head.words is None:
            raise UserError(
                f"{exported.source}: peft keeps BERT's word embeddings with a "
                "head of masked words; pass the BERT as --init_checkpoint"
            )
        found = foreign_heads.masked_lm_tensors(head)
        found[foreign_heads.DECODER] = head.words
        tensors = {f"{ROOT}{name}": value for name, value in found.items()}
    else:
        name = f"{ROOT}{module}"
        tensors = dict(zip((f"{name}.weight", f"{name}.bias"), head.layers[0]))
    for variable in method.variables(exported.config):
        scope, _, part = variable.rpartition("/")
        value = exported.read(variable).T
        if part == "ia3_scale":
            value = value.reshape(_scale_shape(scope, value.size))
        tensors[f"{ROOT}{module_of(scope)}.{TENSORS[part]}"] = value
    model = describe_head(head.kind, () if head.kind == CHOICE else head.labels)
    if head.kind == CHOICE:
        model["num_choices"] = len(head.labels)
    if head.threshold is not None:
        model[foreign_heads.THRESHOLD] = head.threshold
    common: Dict[str, Any] = {
        "base_model_name_or_path": exported.base_name,
        "task_type": TASK_OF_KIND.get(head.kind),
        "inference_mode": True,
        "fan_in_fan_out": False,
        "modules_to_save": [module],
    }
    if head.kind not in TASK_OF_KIND:
        # As peft says it of a task of no type.
        common["auto_mapping"] = {
            "base_model_class": model["architectures"][0],
            "parent_library": "transformers.models.bert.modeling_bert",
        }
    return {
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: {**common, **config},
        MODEL_CONFIG_FILE: {"model_type": "bert", **model},
    }


def _scale_shape(scope: str, size: int) -> Tuple[int, int]:
    """The shape of (IA)^3's scale of a module's outputs, or of its inputs."""
    return (size, 1) if scope.endswith(KEY_VALUE) else (1, size)


def _modules(scopes: Sequence[str]) -> Any:
    """Modules of every layer as peft names them: by endings where it can."""
    ends = [scope.replace("/", ".") for scope in scopes]
    attention = "attention.output.dense"
    # As an ending, `output.dense` would match the attention's module, too.
    if "output.dense" in ends and attention not in ends:
        choices = "|".join(map(re.escape, ends))
        return rf".*\.layer\.\d+\.({choices})"
    return [end.replace("attention.self.", "") for end in ends]
