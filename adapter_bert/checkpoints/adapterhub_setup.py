"""Compositions in the folders of AdapterHub's `save_adapter_setup`.

`adapter_setup.json` says how the adapters of the folders next to it are
composed. `model.load_adapter_setup(folder, use_safetensors=True,
set_active=True)` then computes the same as this project:

| block | method |
|---|---|
| `Stack` | `stack` |
| `Average` | `average` |
| `Fuse` | `fusion` |
| `Parallel` | several adapters, each with a head |

A stack may hold averages and fusions.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import (
    Any,
    NamedTuple,
    Optional,
)

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.bert.hooks import layer_of
from adapter_bert.checkpoints import (
    adapter_artifact,
    adapterhub,
    adapterhub_fusion,
    adapterhub_heads,
    foreign_fields,
)
from adapter_bert.checkpoints.foreign_base import Exported, Head
from adapter_bert.checkpoints.foreign_heads import Told
from adapter_bert.checkpoints.weights import POOLER, Weights
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import (
    AdapterDrop,
    Parallel,
    Pfeiffer,
)
from adapter_bert.methods.base import Part, TuningMethod
from adapter_bert.methods.composition import Average, Stack
from adapter_bert.methods.fusion import Fusion
from adapter_bert.methods.houlsby import SCOPES, Houlsby
from adapter_bert.methods.invertible import MadX
from adapter_bert.methods.lora import Lora
from adapter_bert.methods.prefix import Prefix

Arrays = dict[str, np.ndarray]

SETUP_FILE = "adapter_setup.json"
SETUP = {
    "adapter_setup": dict,
    "adapter_setup.type": str,
    "adapter_setup.children": list,
    "version?": str,
}
SINGLE, PARALLEL, STACK, AVERAGE, FUSE = (
    "single",
    "Parallel",
    "Stack",
    "Average",
    "Fuse",
)
# Fields of a block.
BLOCK: foreign_fields.Fields = dict.fromkeys(("type", "children", "kwargs"))
# Blocks that no method here computes, and why.
REFUSED = {
    "Split": "gives each adapter a part of a text's tokens",
    "BatchSplit": "gives each adapter some of a batch's rows; a batch of many "
    "tasks (adapter-bert predict) does that by row",
    "MultiTask": "gives each adapter the rows of its task; a batch of many "
    "tasks (adapter-bert predict) does that",
}
# The methods whose compositions the library computes alike.
METHODS = (Houlsby, Pfeiffer, Parallel, MadX, Lora, Prefix)
# A place in a layer where an adapter acts.
Site = tuple[int, str]


class Answer(NamedTuple):
    """What answers with one head.

    Attributes:
        method: an adapter's, or a composition with its parts.
        values: float32 variables by name, those of parts too.
        head: of the task.
        origin: version and name, for people.
        parts: SHA-256 of the composition's adapters, by name.
    """

    method: TuningMethod
    values: Arrays
    head: Head
    origin: dict[str, Any]
    parts: dict[str, str]


def is_setup(method: TuningMethod) -> bool:
    """Whether a method is more than one adapter for the library."""
    return isinstance(method, (Stack, Average, Fusion))


def detect(folder: str) -> bool:
    """Whether a folder holds a setup or a fusion of the library's."""
    return any(
        files.exists(os.path.join(folder, name))
        for name in (SETUP_FILE, adapterhub_fusion.CONFIG_FILE)
    )


def read(folder: str, config: BertConfig, told: Told) -> dict[str, Answer]:
    """Reads a folder of `save_adapter_setup` or `save_adapter_fusion`.

    The adapters of a fusion without a setup lie in folders next to its own.
    Returns what answers by the library's name of the head.
    """
    path = os.path.join(folder, SETUP_FILE)
    if not files.exists(path):
        described = adapterhub_fusion.describe(folder, config)
        adapters = list(map(_single, described["adapter_names"]))
        setup = {"type": FUSE, "children": adapters}
        root = os.path.dirname(files.absolute(folder))
        path = os.path.join(folder, adapterhub_fusion.CONFIG_FILE)
        reader = _Reader(path, root, config, folder)
        setup = reader.known(setup)
        head = adapterhub_heads.read(folder, config, told)
        answer = reader.read(setup, "", head, described.get("version"))
        return {described["name"]: answer}
    described = files.read_object(path, "AdapterHub's setup", SETUP)
    foreign_fields.check(described, foreign_fields.HUB_SETUP, path)
    setup, heads = described["adapter_setup"], described.get("head_setup")
    reader = _Reader(path, folder, config)
    is_parallel = setup["type"] == PARALLEL
    if is_parallel:
        reader.check_fields(setup)
    said = setup["children"] if is_parallel else [setup]
    blocks = [reader.known(block) for block in said]
    if isinstance(heads, str) or heads is True or not heads:
        heads = [heads or None] * len(blocks)
    if (
        not isinstance(heads, list)
        or len(heads) != len(blocks)
        or not all(h in (None, True) or isinstance(h, str) for h in heads)
    ):
        raise UserError(
            f"{path}: head_setup is {str(heads)[:80]}, expected the name of a "
            f"head for each of {len(blocks)} that answer"
        )
    if len(blocks) > 1:
        # Labels are those of one head alone.
        told = told._replace(labels=())
    found: dict[str, Answer] = {}
    for block, name in zip(blocks, heads):
        place, own = reader.head_folder(block, name)
        head = adapterhub_heads.read(place, config, told)
        answer = reader.read(block, own, head, described.get("version"))
        if found.setdefault(own, answer) is not answer:
            raise UserError(f"{path}: two adapters have the head {own!r:.80}")
    if len(found) > 1:
        methods = [answer.method for answer in found.values()]
        check_parallel(methods, config, path)
    return found


def _single(name: str) -> dict[str, Any]:
    """The block of one adapter, as `adapter_setup.json` has it."""
    return {"type": SINGLE, "children": [name]}


def _names(block: dict[str, Any]) -> list[str]:
    """The names of a block's adapters, in order."""
    if block["type"] == SINGLE:
        return list(block["children"])
    return [name for child in block["children"] for name in _names(child)]


class _Reader:
    """Reads the blocks of one description."""

    def __init__(
        self, path: str, root: str, config: BertConfig, fusion: str = ""
    ):
        """Takes the description's path, and the folder of the adapters.

        `fusion` is the folder of the one fusion; by default fusions lie in
        folders next to the adapters, with the adapters' names.
        """
        self.path, self.root, self.config = path, root, config
        self.folders, self.fusion = files.folders(root), fusion

    def check_fields(self, block: dict[str, Any]) -> None:
        """Raises UserError for what the library does not write."""
        foreign_fields.check(block, BLOCK, self.path)
        if block["type"] != AVERAGE and block.get("kwargs"):
            raise UserError(
                f"{self.path}: {block['type']} has kwargs "
                f"{str(block['kwargs'])[:80]}, but the library knows none of it"
            )

    def known(self, block: Any, level: int = 0) -> dict[str, Any]:
        """A block, if it is one that can be read; else raises UserError."""
        said = block if isinstance(block, dict) else {}
        kind, children = said.get("type"), said.get("children")
        types = list(map(type, children)) if isinstance(children, list) else []
        is_single = kind == SINGLE and types == [str]
        if not is_single and (
            not isinstance(kind, str) or not types or kind == SINGLE
        ):
            raise UserError(
                f"{self.path}: {str(block)[:80]} is no block; expected a type "
                "and its children"
            )
        if kind in REFUSED:
            raise UserError(
                f"{self.path}: {kind} {REFUSED[kind]}, which no method of this "
                "project does; expected Stack, Average, Fuse or Parallel"
            )
        allowed: tuple[str, ...] = (SINGLE,)
        if level == 0:
            allowed = (SINGLE, STACK, AVERAGE, FUSE)
        elif level == 1:
            allowed = (SINGLE, AVERAGE, FUSE)
        if kind not in allowed:
            raise UserError(
                f"{self.path}: {str(kind)[:80]} is not read here; expected "
                "Parallel alone around others, Stack around Average and Fuse, "
                "and these around adapters"
            )
        self.check_fields(said)
        if is_single:
            return _single(children[0])
        below = 1 if kind == STACK else 2
        known = [self.known(child, below) for child in children]
        names = [_our_name(_names(child)) for child in known]
        if len(set(names)) < len(names):
            raise UserError(
                f"{self.path}: {kind} has {', '.join(names)[:200]}; expected "
                "each of them once"
            )
        return {**said, "children": known}

    def place(self, name: str) -> str:
        """The folder of what has a name in the setup."""
        if name not in self.folders:
            raise UserError(
                f"{self.path} names {name[:80]!r}, which is no folder of "
                f"{self.root}; it has: {', '.join(self.folders)[:200]}"
            )
        return os.path.join(self.root, name)

    def head_folder(self, block: dict[str, Any], head: Any) -> tuple[str, str]:
        """The folder and the name of a block's head.

        `head` is the head's name; or true, for the one of a model of
        transformers'; or None, for the one that the library would choose.
        """
        own = _names(block)[-1]
        if head is True:
            return self.root, own
        if head is None and block["type"] == FUSE:
            own = ",".join(_names(block))
        name = head or own
        return self.place(name), name

    def read(
        self,
        block: dict[str, Any],
        own: str,
        head: Head,
        version: Optional[str],
    ) -> Answer:
        """What a block computes, with a head; `own` is the head's name."""
        method, values, parts = self._compose(block, own)
        check(method, self.config, self.path)
        origin = {"version": version, "name": own or ",".join(_names(block))}
        return Answer(method, values, head, origin, parts)

    def _compose(
        self, block: dict[str, Any], own: str = ""
    ) -> tuple[TuningMethod, Arrays, dict[str, str]]:
        """A block's method, its values, and the hashes of its parts.

        The last adapter of a stack is trained if it has the name `own`.
        """
        kind, children = block["type"], block["children"]
        if kind == SINGLE:
            return *self._adapter(children[0]), {}
        if kind == STACK and len(children) == 1:
            return self._compose(children[0])
        parts: list[Part] = []
        values: Arrays = {}
        hashes: dict[str, str] = {}
        for child in children:
            method, inner, _ = self._compose(child)
            name = _our_name(_names(child))
            is_last = child is children[-1] and kind == STACK
            if is_last and child == _single(own):
                name = ""
            part = Part(name, method.as_part if name else method)
            parts.append(part)
            if name:
                hashes[name] = adapter_artifact.sha256(inner)
            values.update({part.scope + k: v for k, v in inner.items()})
        if kind == AVERAGE:
            arguments = self._weights(block)
            composed: TuningMethod = Average(tuple(parts), **arguments)
        elif kind == STACK:
            composed = Stack(tuple(parts))
        else:
            return *self._fusion(block, parts, values), hashes
        composed.check(self.config)
        return composed, values, hashes

    def _adapter(self, name: str) -> tuple[TuningMethod, Arrays]:
        path = os.path.join(self.place(name), adapterhub.CONFIG_FILE)
        method, values, origin = adapterhub.read_adapter(path, self.config)
        if origin["name"] != name:
            raise UserError(
                f"{path} is of the adapter {origin['name'][:80]!r}, but its "
                f"folder is called {name!r}; expected one name"
            )
        return method, values

    def _fusion(
        self, block: dict[str, Any], parts: Sequence[Part], values: Arrays
    ) -> tuple[TuningMethod, Arrays]:
        """A fusion of parts that have been read."""
        names = _names(block)
        folder = self.fusion or self.place(",".join(names))
        described = adapterhub_fusion.describe(folder, self.config)
        if described["adapter_names"] != names:
            raise UserError(
                f"{folder} fuses {str(described['adapter_names'])[:200]}, but "
                f"{self.path} has {names}"
            )
        arguments = adapterhub_fusion.arguments(described)
        fusion = Fusion(tuple(parts), **arguments)
        fusion.check(self.config)
        own = adapterhub_fusion.read(
            folder, described["name"], fusion, self.config
        )
        return fusion, {**values, **own}

    def _weights(self, block: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `average` that a block says.

        Source: `Average` of the library, which normalizes weights when it
        loads them, and `mean` of its layers, which divides by their number.
        """
        said = block.get("kwargs") or {}
        if not isinstance(said, dict):
            said = {"weights": said}
        count = len(block["children"])
        weights = said.get("weights")
        normalizes = said.get("normalize_weights", True)
        if weights is None:
            weights, normalizes = [1.0] * count, True
        is_right = (
            set(said) <= {"weights", "normalize_weights"}
            and isinstance(normalizes, bool)
            and isinstance(weights, list)
            and len(weights) == count
            and all(type(w) in (int, float) and 0 < w < 1e6 for w in weights)
        )
        if not is_right:
            raise UserError(
                f"{self.path}: kwargs of Average is {str(said)[:80]}, expected "
                f"weights, {count} positive numbers, and normalize_weights"
            )
        whole = sum(weights)
        scale = (1.0 if normalizes else whole) / count
        shares = [_rounded(weight / whole) for weight in weights]
        is_plain = len(set(shares)) == 1
        return {
            "weights": "" if is_plain else ",".join(map(str, shares)),
            "scale": _rounded(scale),
        }


def _rounded(number: float) -> float:
    """A number without what the rounding of a sum has added."""
    return float(f"{number:.12g}")


def _our_name(names: Sequence[str]) -> str:
    """The name of a part that is made of the library's adapters."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join(names))


def _leaves(method: TuningMethod) -> Iterator[TuningMethod]:
    """The adapters that a method is made of, itself if it is one."""
    if not is_setup(method):
        yield method
        return
    for part in method.parts:
        yield from _leaves(part.method)


def _kept(method: TuningMethod, config: BertConfig) -> TuningMethod:
    """The adapters that are left, of `adapterdrop`."""
    return method.kept(config) if isinstance(method, AdapterDrop) else method


def _sites(method: TuningMethod, config: BertConfig) -> frozenset[Site]:
    method = _kept(method, config)
    if isinstance(method, Lora):
        scopes = {n.rpartition("/")[0] for n in method.variables(config)}
        return frozenset((layer_of(scope), scope) for scope in scopes)
    if isinstance(method, Prefix):
        layers = range(config.num_hidden_layers)
        return frozenset((layer, "prefix") for layer in layers)
    return frozenset(method.scopes(config))


def _check_alike(
    methods: Sequence[TuningMethod], config: BertConfig, block: str, source: str
) -> None:
    """Raises UserError unless all are one method's, at the same places."""
    kinds = {
        (type(_kept(method, config)), _sites(method, config))
        for method in methods
    }
    if len(kinds) > 1:
        raise UserError(
            f"{source}: {block} of {', '.join(map(str, methods))[:200]} is not "
            "exchanged with AdapterHub's library, which computes it for "
            "adapters of one method in the same layers alone"
        )


def check_parallel(
    methods: Sequence[TuningMethod], config: BertConfig, source: str
) -> None:
    """Raises UserError unless the library computes methods in `Parallel`.

    It gives all of them what the first one reads.
    """
    for method in methods:
        if method.parts or isinstance(method, (MadX, Prefix)):
            raise UserError(
                f"{source}: {method} next to others is not exchanged with "
                "AdapterHub's library, whose Parallel computes otherwise all "
                "but single adapters in the layers; exchange it by itself"
            )
    _check_alike(methods, config, "Parallel", source)


def check(method: TuningMethod, config: BertConfig, source: str) -> None:
    """Raises UserError if the library computes a composition otherwise.

    Sources: `compose_stack`, `compose_average`, `compose_fuse` and `pre_block`
    of its layers, and `InvertibleAdapterLayer.forward`.
    """
    leaves = list(_leaves(method))
    for leaf in leaves:
        if type(_kept(leaf, config)) not in METHODS:
            raise UserError(
                f"{source}: {leaf.name} in a composition is not exchanged with "
                "AdapterHub's library; expected "
                "houlsby(layer_norms=false), pfeiffer, parallel, mad_x, lora "
                "or prefix"
            )
    for leaf in leaves[1:]:
        if isinstance(leaf, MadX):
            raise UserError(
                f"{source}: {leaf} comes after another adapter; AdapterHub's "
                "library has the invertible adapter of the first one alone"
            )
    blocks = _row(method)
    for first, second in itertools.combinations(blocks, 2):
        _check_sum(first, second, config, source)
    for number, block in enumerate(blocks):
        others = [*blocks[:number], *blocks[number + 1 :]]
        if is_setup(block) and not _fits(block, others, config, source):
            raise UserError(
                f"{source}: {block.name} of "
                f"{', '.join(str(p.method) for p in block.parts)[:200]} is not "
                "exchanged with AdapterHub's library, which would compute it "
                "otherwise; expected houlsby or pfeiffer in a fusion, the last "
                "of them in all layers of the others; and averages of adapters "
                "in the same layers as all others"
            )


def _row(method: TuningMethod) -> list[TuningMethod]:
    """What is stacked, without stacks in stacks; or a method alone."""
    if not isinstance(method, Stack):
        return [method]
    return [one for part in method.parts for one in _row(part.method)]


def _check_sum(
    first: TuningMethod, second: TuningMethod, config: BertConfig, source: str
) -> None:
    """Raises UserError for parts of a stack that are not added up."""
    for before, after in itertools.product(_leaves(first), _leaves(second)):
        common = _sites(before, config) & _sites(after, config)
        kinds = (Parallel, Lora)
        if common and any(isinstance(a, kinds) for a in (before, after)):
            raise UserError(
                f"{source}: {before} and {after} act at the same places, "
                "and AdapterHub's library does not add up what LoRA or "
                "parallel adapters give in a stack; expected one of them"
            )


def _fits(
    block: TuningMethod,
    others: Sequence[TuningMethod],
    config: BertConfig,
    source: str,
) -> bool:
    """Whether an average or a fusion is the same with others in a stack."""
    own = [_kept(part.method, config) for part in block.parts]
    if any(method.parts for method in own):
        return False
    outside = [leaf for other in others for leaf in _leaves(other)]
    everywhere = {site for a in outside for site in _sites(a, config)}
    if isinstance(block, Average):
        _check_alike(own, config, block.name, source)
        return everywhere <= _sites(own[0], config)
    inside = [_sites(method, config) for method in own]
    kept = [
        {site for site in each if site[0] >= block.first} for each in inside
    ]
    flags = [{site for _, site in each} for each in inside]
    bottlenecks = {site for site in everywhere if site[1] in SCOPES}
    return (
        # The library fuses what gates have not multiplied.
        not any(isinstance(m, Parallel) or m.gating for m in own)
        and all(each == flags[0] for each in flags)
        and bottlenecks.union(*kept) <= kept[-1]
    )


def without_pooler(exported: Exported, bert: Weights) -> Exported:
    """An adapter whose head has BERT's pooler as its first layer.

    In `Parallel` the library gives a head that reads the pooled output all
    adapters' rows.
    """
    head = exported.head
    if head is None or not head.shape.pooler:
        return exported
    shape = head.shape
    if shape.layers > 1 and shape.activation != "tanh":
        raise UserError(
            f"{exported.source}: the head reads the pooled output, and its "
            f"activation is {shape.activation}, not tanh as the pooler's; "
            "write it by itself"
        )
    kernel, bias = (bert.read(f"{POOLER}dense/{n}") for n in ("kernel", "bias"))
    shape = dataclasses.replace(
        shape, layers=shape.layers + 1, activation="tanh", pooler=False
    )
    layers = ((kernel.T, bias), *head.layers)
    head = dataclasses.replace(head, shape=shape, layers=layers)
    return dataclasses.replace(exported, head=head)


def write(several: Sequence[Exported]) -> dict[str, Any]:
    """The contents of a setup's files, by their paths in the folder.

    Several adapters answer next to one another.
    """
    contents: dict[str, Any] = {}
    if len(several) > 1:
        methods = [exported.method for exported in several]
        check_parallel(methods, several[0].config, several[0].source)
        for exported in several:
            if exported.head and exported.head.shape.pooler:
                raise UserError(
                    f"{exported.source}: the head reads the pooled output, "
                    "which AdapterHub's library mixes up in Parallel; pass "
                    "--init_checkpoint, so that the pooler becomes the head's "
                    "first layer"
                )
    blocks = []
    for exported in several:
        check(exported.method, exported.config, exported.source)
        blocks.append(_write_block(exported, exported.name, contents))
        for name, content in adapterhub.head_files(exported).items():
            contents[f"{exported.name}/{name}"] = content
    heads = [exported.name for exported in several if exported.head]
    [setup, *others] = blocks
    if others:
        setup = {"type": PARALLEL, "children": blocks}
    elif setup["type"] == SINGLE:
        setup = {"type": STACK, "children": [setup]}
    contents[SETUP_FILE] = {
        "adapter_setup": setup,
        "head_setup": heads if len(heads) > 1 else next(iter(heads), None),
        "version": adapterhub.VERSION,
    }
    return contents


def _write_block(
    exported: Exported, name: str, contents: dict[str, Any], first: int = 0
) -> dict[str, Any]:
    """The block of a method; adds the files of its adapters to `contents`.

    `name` is the adapter's there; adapters below the layer `first` are left
    out.
    """
    method = exported.method
    if not is_setup(method):
        if any(path.startswith(f"{name}/") for path in contents):
            raise UserError(
                f"{exported.source}: two adapters would be called {name}; "
                "give this one another name (adapter-bert library rename)"
            )
        method = _above(_kept(method, exported.config), first, exported)
        own = dataclasses.replace(exported, name=name, method=method)
        for file, content in adapterhub.adapter_files(own).items():
            contents[f"{name}/{file}"] = content
        return _single(name)
    blocks = []
    trained = [part for part in method.parts if not part.name]
    for number, part in enumerate(method.parts):
        theirs = part.name.replace(".", "_")
        if not part.name:
            theirs = name if part is trained[-1] else f"{name}_{number}"
        inner = dataclasses.replace(
            exported,
            method=part.method,
            read=lambda variable, scope=part.scope: exported.read(
                scope + variable
            ),
        )
        lowest = method.first if isinstance(method, Fusion) else 0
        block = _write_block(inner, theirs, contents, lowest)
        is_stack = block["type"] == STACK
        blocks += block["children"] if is_stack else [block]
    if isinstance(method, Average):
        # The library divides by the number of adapters.
        times = len(blocks) * method.scale
        weights = [_rounded(times * share) for share in method.shares()]
        said = {"weights": weights, "normalize_weights": False}
        return {"type": AVERAGE, "children": blocks, "kwargs": said}
    if isinstance(method, Fusion):
        names = [name for block in blocks for name in _names(block)]
        whole = dataclasses.replace(exported, name=",".join(names))
        written = adapterhub_fusion.write(whole, method, names)
        for file, content in written.items():
            contents[f"{whole.name}/{file}"] = content
        return {"type": FUSE, "children": blocks}
    return {"type": STACK, "children": blocks}


def _above(
    method: TuningMethod, first: int, exported: Exported
) -> TuningMethod:
    """A bottleneck method without its adapters below a layer."""
    if not first:
        return method
    layers = base.choose_layers(method.layers, exported.config)
    kept = [str(layer) for layer in layers if layer >= first]
    if not kept:
        raise UserError(
            f"{exported.source}: {method} has no adapter from layer {first} "
            "on; leave it out of the fusion"
        )
    return dataclasses.replace(method, layers=",".join(kept))
