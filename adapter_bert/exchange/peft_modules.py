"""Which modules of BERT peft's descriptions name.

peft finds modules by the ends of their names, or by patterns of whole names.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import (
    Any,
)

import tensorflow as tf
from absl import logging

from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints.hugging_face import CHOICES, as_bert, from_bert
from adapter_bert.errors import UserError, first_line
from adapter_bert.exchange.foreign_base import Adapter, module_of
from adapter_bert.methods.lora import OF_POOLER, TARGETS

WEIGHTS_FILE = "adapter_model.safetensors"
# Before the names of modules in those of tensors.
ROOT = "base_model.model."
# The pooler's module, behind `bert.`.
POOLER = "pooler.dense"
# The type of a task whose model has a pooler, if there is one.
WITH_POOLER = "SEQ_CLS"
# What peft takes for BERT where `target_modules` is null.
TARGETS_OF_BERT = {
    "LORA": ["query", "value"],
    "VERA": ["query", "value"],
    "ADALORA": ["query", "value"],
    "IA3": ["key", "value", "output.dense"],
}
ALL_LINEAR = "all-linear"
# Of a field, and letters of each; a large BERT has 144 matrices.
MOST_PATTERNS, LONGEST_PATTERN = 500, 500


def check_saved(adapter: Adapter) -> None:
    """Refuses `modules_to_save` that name modules of BERT without tensors."""
    described, tensors, config, path, _ = adapter
    modules = set()
    for variable in list_variables(config):
        names = their_module(variable, config).split(".")
        modules.update(itertools.accumulate(names, "{}.{}".format))
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
) -> set[str]:
    """Finds the modules that a description names, as peft does.

    Source: peft, `check_target_module_exists`.
    """
    targets = described.get("target_modules")
    if targets is None:
        targets = TARGETS_OF_BERT[described["peft_type"]]
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        targets = "(.*)"
    targeted = named(targets, "target_modules", modules, path)
    left_out = named(
        described.get("exclude_modules") or (), "exclude_modules", modules, path
    )
    layers = described.get("layers_to_transform")
    if isinstance(layers, int):
        layers = [layers]
    if not isinstance(layers, (list, type(None))):
        raise UserError(
            f"{path}: layers_to_transform is {layers!r:.80}, expected a number "
            "or a list"
        )
    if layers:
        if isinstance(targets, str):
            raise UserError(
                f"{path}: layers_to_transform is {layers!r:.80}, which peft "
                "takes only where target_modules is a list"
            )
        patterns = described.get("layers_pattern") or r"[^.]*"
        if isinstance(patterns, str):
            patterns = [patterns]
        _check_patterns(patterns, "layers_pattern", path)
        whole = "|".join(rf"(?:.*\.)?(?:{pattern})" for pattern in patterns)
        within = _matches(rf"(?:{whole})\.\d+\..*", modules, path)
        numbers = set(map(str, layers))
        chosen = {
            module
            for module in itertools.compress(modules, within)
            if re.search(r"\.(\d+)\.", module)[1] in numbers
        }
        # A whole name stands for itself, in any layer.
        chosen.update(module for module in targeted if module in targets)
        targeted &= chosen
    targeted -= left_out
    if not targeted:
        raise UserError(
            f"{path}: target_modules is {str(targets)[:80]!r}, which with its "
            "limits names no matrix of this BERT; is it of another model?"
        )
    if not isinstance(targets, str):
        idle = [end for end in targets if not _ending(targeted, [end])]
        _warn_of_idle(idle, "target_modules", path)
    return targeted


def named(names: Any, key: str, modules: Sequence[str], path: str) -> set[str]:
    """Finds the modules that match a pattern, or end with listed names."""
    if isinstance(names, str):
        return set(itertools.compress(modules, _matches(names, modules, path)))
    if isinstance(names, (list, tuple)):
        return _ending(modules, names)
    raise UserError(
        f"{path}: {key} is {names!r:.80}, expected a pattern or a list"
    )


def _ending(modules: Iterable[str], ends: Iterable[Any]) -> set[str]:
    ends = tuple(f".{end}" for end in ends)
    return {module for module in modules if f".{module}".endswith(ends)}


def _warn_of_idle(names: Sequence[Any], key: str, path: str) -> None:
    if names:
        idle = ", ".join(map(repr, names))
        logging.warning(
            "%s: in %s these act on no module: %s", path, key, idle[:200]
        )


def _matches(pattern: str, texts: Sequence[str], path: str) -> list[bool]:
    """Matches a pattern with each whole text.

    RE2, TensorFlow's engine, takes linear time. Python's engine could take
    exponential time.
    """
    try:
        # Functions of `tf.strings` keep all patterns in memory.
        matches = tf.raw_ops.RegexFullMatch(input=list(texts), pattern=pattern)
    except tf.errors.OpError as error:
        raise UserError(
            f"{path}: {pattern[:80]!r} is no regular expression that can be "
            f"used here: {first_line(error)[:200]}; name the modules in a list"
        ) from error
    return matches.numpy().tolist()


def _check_patterns(patterns: Any, key: str, path: str) -> None:
    """Refuses too many patterns, and those that may take long."""
    if not isinstance(patterns, list):
        raise UserError(f"{path}: {key} is {patterns!r:.80}, expected a list")
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


def by_pattern(
    described: Mapping[str, Any], key: str, modules: Sequence[str], path: str
) -> dict[str, Any]:
    """Finds the value of each module that a pattern of a field matches.

    Source: peft, `get_pattern_key`: the first pattern that ends the name holds.
    """
    patterns = described.get(key) or {}
    _check_patterns(list(patterns), key, path)
    values: dict[str, Any] = {}
    idle = []
    for pattern, value in patterns.items():
        left = [module for module in modules if module not in values]
        # With all modules found, later patterns are not looked at.
        fits = left and _matches(rf"(.*\.)?({pattern})", left, path)
        if not any(fits):
            idle.append(pattern)
        values.update(dict.fromkeys(itertools.compress(left, fits), value))
    _warn_of_idle(idle, key, path)
    return values


def places(adapter: Adapter, end: str) -> list[tuple[int, str, str]]:
    """(layer, name within the layer, module) of each module that has a part.

    The second is BERT's name. Of the pooler the first two are -1 and `POOLER`.
    """
    described, tensors, config, path, _ = adapter
    kind = config.model_type
    architecture = ARCHITECTURES[kind]
    held = [
        name.removeprefix(ROOT).removesuffix(f".{end}")
        for name in tensors.names
        if name.endswith(f".{end}")
    ]
    pattern = re.compile(
        rf"(?:bert\.)?(?:encoder\.layer\.(\d+)\.(.*)|{re.escape(POOLER)})"
    )
    places = []
    for module in held:
        ours = as_bert(module, kind)
        match = pattern.fullmatch(ours)
        whole = from_bert(f"bert.{ours.removeprefix('bert.')}", kind)
        if whole not in (module, architecture.prefix + module):
            # Named as in another kind of model.
            continue
        if match and match[1]:
            places.append((int(match[1]), match[2], module))
        elif match:
            places.append((OF_POOLER[0], POOLER, module))
    if len({place[:2] for place in places}) < len(places):
        raise UserError(
            f"{tensors.path} holds tensors of one module of BERT by two names, "
            f"with {architecture.prefix} and without; save one of them"
        )
    is_bare = any(
        not module.startswith(architecture.prefix) for *_, module in places
    )
    root = "" if is_bare else architecture.prefix
    # All matrices of BERT, in the order of its layers.
    matrices = [
        root + ending_of(f"bert/encoder/layer_{layer}/{scope}", config, "")
        for layer in range(config.num_hidden_layers)
        for scope in TARGETS.values()
    ]
    # A model for questions has no pooler.
    mapping = described.get("auto_mapping") or {}
    kinds = described.get("task_type"), mapping.get("base_model_class")
    with_pooler = {
        WITH_POOLER,
        *(f"{name}{CHOICES}" for name in architecture.classes),
    }
    if config.has_pooler and with_pooler.intersection(kinds):
        matrices.append(root + ending_of(encoder.POOLER, config))
    wanted = _targeted(described, [*matrices, *held], path)
    for module in matrices:
        if module in wanted and module not in held:
            raise UserError(
                f"{path}: target_modules names {module}, but "
                f"{WEIGHTS_FILE} holds nothing for it"
            )
    for module in held:
        if module not in wanted:
            raise UserError(
                f"{path}: {WEIGHTS_FILE} holds tensors of {module[:80]}, which "
                "target_modules and what limits it (exclude_modules, "
                "layers_to_transform, layers_pattern) leave out"
            )
    return places


def modules(scopes: Sequence[str], config: BertConfig) -> Any:
    """Modules of every layer as peft names them: by endings where it can.

    `scopes` are within a layer; one may be the pooler's.
    """
    first = "bert/encoder/layer_0/"
    layer = ending_of(first, config)
    ends = [
        ending_of(encoder.POOLER, config)
        if scope == POOLER
        else ending_of(first + scope, config).removeprefix(layer)
        for scope in scopes
    ]
    attention = "attention.output.dense"
    # As an ending, `output.dense` would match the attention's module, too.
    if "output.dense" in ends and attention not in ends:
        choices = "|".join(re.escape(end) for end in ends if end != POOLER)
        pattern = rf".*\.layer\.\d+\.({choices})"
        return (
            rf"{pattern}|.*{re.escape(POOLER)}" if POOLER in ends else pattern
        )
    return [end.replace("attention.self.", "") for end in ends]


def their_module(scope: str, config: BertConfig) -> str:
    """Names the module that has a scope's variables in a model."""
    return from_bert(module_of(scope), config.model_type)


def ending_of(scope: str, config: BertConfig, outside: str = "encoder.") -> str:
    """Cuts a module's name, from the layer or the pooler on.

    Without what stands before all layers, `outside`.
    """
    prefix = ARCHITECTURES[config.model_type].prefix
    name = their_module(scope, config).removeprefix(prefix)
    return name.removeprefix(outside)


def modules_of(scopes: Collection[str], config: BertConfig) -> Any:
    """`modules`, or the modules of some layers, as peft names them."""
    above = [scope for scope in scopes if scope == encoder.POOLER]
    places = [scope.split("/", 3)[3] for scope in scopes if scope not in above]
    if len(places) == len(set(places)) * config.num_hidden_layers:
        above = [POOLER] * len(above)
        return modules([*dict.fromkeys(places), *above], config)
    return [ending_of(scope, config) for scope in scopes]
