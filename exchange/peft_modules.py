"""Which of BERT's modules the fields of a description of peft's name.

peft finds modules by the ends of their names, or by patterns of whole names.
"""

import itertools
import re
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set

import tensorflow as tf
from absl import logging

import modeling
from errors import UserError, first_line
from modeling import BertConfig

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


def check_saved(
    described: Mapping[str, Any],
    tensors: Sequence[str],
    config: BertConfig,
    path: str,
) -> None:
    """Refuses `modules_to_save` that name modules of BERT's without tensors.

    Args:
        described: the description.
        tensors: names of those that the file holds.
        config: of the BERT.
        path: of the description, for messages.

    Raises:
        UserError: there are such.
    """
    modules = set()
    for variable in modeling.list_variables(config):
        parts = variable.replace("/layer_", "/layer/").split("/")
        modules.update(".".join(parts[: n + 1]) for n in range(len(parts)))
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


def targeted(
    described: Mapping[str, Any], modules: Sequence[str], path: str
) -> Set[str]:
    """The modules that a description names, as peft finds them.

    Args:
        described: the description.
        modules: names of BERT's modules.
        path: of the description, for messages.

    Source: peft, `check_target_module_exists`.

    Raises:
        UserError: it names none, or in a way that cannot be followed.
    """
    kind = described["peft_type"]
    targets = described.get("target_modules")
    if targets is None:
        targets = TARGETS_OF_BERT[kind]
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        targets = "(.*)"
    found = named(targets, "target_modules", modules, path)
    left_out = named(
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


def named(names: Any, key: str, modules: Sequence[str], path: str) -> Set[str]:
    """The modules that a pattern matches, or that end with names of a list.

    Args:
        names: the pattern or the list.
        key: the field that has it.
        modules: names of BERT's modules.
        path: of the description, for messages.

    Raises:
        UserError: it is neither.
    """
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

    Raises:
        UserError: it is no pattern, or one that only Python's engine takes.
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
    """Refuses patterns that are too many, or that may take long.

    Raises:
        UserError: there are such.
    """
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


def by_pattern(
    described: Mapping[str, Any], key: str, modules: Sequence[str], path: str
) -> Dict[str, Any]:
    """The value of each module that a pattern of a field matches.

    Args:
        described: the description.
        key: the field, whose keys are patterns.
        modules: names of BERT's modules.
        path: of the description, for messages.

    Source: peft, `get_pattern_key`: the first pattern that ends the name.

    Raises:
        UserError: there are too many patterns, or one is none or takes long.
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
