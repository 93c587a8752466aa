"""Adapters of AdapterHub's library `adapters` 1.3, read and written.

After `AutoAdapterModel.load_adapter(folder, use_safetensors=True)` the library
computes the same as this project. Heads of its own models have any number of
layers, heads of transformers' models have one.
"""

import dataclasses
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type

import numpy as np

from adapter_bert import files
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import foreign_fields, peft
from adapter_bert.checkpoints.foreign_base import (
    CLASSIFICATION,
    QUESTIONS,
    Exported,
    Head,
    Layer,
    Tensors,
    activation,
    as_lora_number,
    check_layer,
    check_number,
    foreign_activation,
    make_head,
    unit_scales,
)
from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import (
    AdapterDrop,
    Parallel,
    Pfeiffer,
)
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.houlsby import SCOPES, SITES, Houlsby
from adapter_bert.methods.ia3 import KEY_VALUE, Ia3
from adapter_bert.methods.invertible import SCOPE, MadX
from adapter_bert.methods.lora import TARGETS, Lora
from adapter_bert.methods.prefix import PARTS, Prefix
from adapter_bert.tasks.text_task import POOLED, HeadShape

Arrays = Dict[str, np.ndarray]

CONFIG_FILE, HEAD_CONFIG_FILE = "adapter_config.json", "head_config.json"
WEIGHTS_FILE, WEIGHTS_PICKLE = "adapter.safetensors", "pytorch_adapter.bin"
HEAD_WEIGHTS_FILE = "model_head.safetensors"
HEAD_PICKLE = "pytorch_model_head.bin"
# A key that only this program's descriptions have.
MARK = "model_type"
# Tells the library how to read the rest.
VERSION = "adapters.1.3.0"
CONFIG = {
    "config": dict,
    **{
        f"config.{name}?": kind
        for kind, names in {
            str: "architecture non_linearity",
            float: "alpha",
            list: "leave_out attn_matrices",
            int: "r prefix_length bottleneck_size",
            bool: "mh_adapter output_adapter original_ln_before is_parallel "
            "selfattn_lora intermediate_lora output_lora flat",
        }.items()
        for name in names.split()
    },
    "name": str,
    "model_type": str,
    "hidden_size": int,
    "version?": str,
}
HEAD_CONFIG = {
    "model_class": str,
    "model_type?": str,
    "hidden_size?": int,
    "config?": dict,
    "config?.use_pooler?": bool,
    "config?.bias?": bool,
    "num_labels?": int,
}
# Class of a model of transformers -> tensors of its head.
STATIC_HEADS = {
    "BertForSequenceClassification": "classifier",
    "BertForQuestionAnswering": "qa_outputs",
}
FLEXIBLE = ("BertAdapterModel", "BertModelWithHeads")
# Defaults of a bottleneck's config. Source: `adapters.BnConfig`.
BOTTLENECK = {
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "is_parallel": False,
    "scaling": 1.0,
    "use_gating": False,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "inv_adapter": None,
    "phm_layer": False,
}
# The dense layers of a bottleneck adapter.
PARTS_OF_ADAPTER = ("adapter_down.0", "adapter_up")
# Where invertible adapters are, and the kind that this project has.
INVERTIBLE, NICE = "invertible_adapters", "nice"
# Where a prefix is.
PREFIX = "prefix_tuning"
# Site -> the field that says whether there are adapters.
SITE_FIELDS = {"attention": "mh_adapter", "ffn": "output_adapter"}
# Place -> name of `lora.TARGETS`; the field that says whether it has updates;
# the letter of an attention's matrix in `attn_matrices`.
LORA_PLACES = {
    "attention.self.query": ("query", "selfattn_lora", "q"),
    "attention.self.key": ("key", "selfattn_lora", "k"),
    "attention.self.value": ("value", "selfattn_lora", "v"),
    "intermediate.dense": ("intermediate", "intermediate_lora", ""),
    "output.dense": ("output", "output_lora", ""),
}


class _Adapter:
    """An adapter's config `own` at `path`, its BERT, and its tensors."""

    def __init__(
        self, own: Dict[str, Any], config: BertConfig, path: str, name: str
    ):
        """Finds `<place>.<kind>.<name>.<part>` of each tensor.

        Invertible adapters are in no module: their kind is their place.
        """
        self.own, self.config, self.path = own, config, path
        folder = os.path.dirname(path)
        self._tensors = Tensors(folder, WEIGHTS_FILE, WEIGHTS_PICKLE)
        self.check_all_taken = self._tensors.check_all_taken
        kinds = "adapters|loras|prefix_tunings|prefix_gates"
        pattern = re.compile(
            rf"(?:bert\.)?(?:(.*)\.(?:{kinds})|({INVERTIBLE}))\."
            rf"{re.escape(name)}\.(.*)"
        )
        self._names: Dict[Tuple[str, str], str] = {}
        for full in self._tensors.names:
            match = pattern.fullmatch(full)
            place = match and (match[1] or match[2])
            if place and place.endswith("prefix_tuning.pool"):
                # A copy: a prefix is in the model once, and in each layer.
                self._tensors.drop(full)
            elif match:
                self._names[place, match[3]] = full

    def take(self, place: str, part: str, *shape: Optional[int]) -> np.ndarray:
        """A module's tensor, as `Tensors.take`."""
        name = self._names.pop((place, part), f"{place}...{part}")
        return self._tensors.take(name, *shape)

    def take_dense(
        self,
        place: str,
        parts: Tuple[str, str],
        width: int,
        size: Optional[int] = None,
    ) -> Tuple[int, Arrays]:
        """Two dense layers, from `width` to `size` (None for any) and back.

        Returns:
            The size, and the values by the names within a scope.
        """
        first, second = parts
        down = self.take(place, f"{first}.weight", size, width)
        size = len(down)
        down_bias = self.take(place, f"{first}.bias", size)
        up = self.take(place, f"{second}.weight", width, size)
        up_bias = self.take(place, f"{second}.bias", width)
        return size, {
            "weights1": down.T,
            "biases1": down_bias[np.newaxis],
            "weights2": up.T,
            "biases2": up_bias[np.newaxis],
        }

    def by_layer(self, sites: Mapping[str, str]) -> Dict[Tuple[int, str], str]:
        """Places by layer and name within the layer.

        `sites` are names within a layer where the config has tensors, and the
        fields that say so. Raises UserError if the tensors are elsewhere.
        """
        path = self.path
        left_out = self.own.get("leave_out") or ()
        layers = range(self.config.num_hidden_layers)
        for layer in left_out:
            if type(layer) is not int or layer not in layers:
                raise UserError(
                    f"{path}: leave_out names the layer {str(layer)[:80]}, "
                    f"expected numbers from 0 to {len(layers) - 1}"
                )
        found = {}
        for place, _ in self._names:
            match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.*)", place)
            if match is None:
                raise UserError(
                    f"{path}: no method of this project has anything at {place}"
                )
            check_layer(int(match[1]), self.config, path)
            found[int(match[1]), match[2]] = place
        for layer, name in found:
            if layer in left_out or name not in sites:
                which = (
                    "leave_out excludes"
                    if layer in left_out
                    else "no field of the config names"
                )
                raise UserError(
                    f"{path}: {WEIGHTS_FILE} has tensors of {name} in layer "
                    f"{layer}, which {which}; the description contradicts the "
                    "tensors"
                )
        for layer in layers:
            for name, field in sites.items():
                if layer not in left_out and (layer, name) not in found:
                    raise UserError(
                        f"{path}: {WEIGHTS_FILE} lacks the tensors of {name} "
                        f"in layer {layer}, which {field} names and leave_out "
                        "does not"
                    )
        return found

    def check_size(
        self, key: str, whole: int, size: int, layer: str = ""
    ) -> None:
        """Compares a size with `whole` divided by the config's factor.

        The factor at `key` is a number, or numbers by layer.
        """
        said = factor = self.own.get(key)
        if isinstance(factor, dict):
            factor = factor.get(layer, factor.get("default"))
        if not _is_number(factor):
            raise UserError(
                f"{self.path}: {key} is {str(said)[:80]}, expected a number "
                "above 0, or one for each layer"
            )
        # As the library rounds.
        expected = max(1, whole // factor)
        if size != expected:
            raise UserError(
                f"{self.path}: {key} is {str(factor)[:80]}, so adapters have "
                f"the size {expected:.0f}, but {WEIGHTS_FILE} has one of the "
                f"size {size}; the description contradicts the tensors"
            )

    def check_count(self, key: str, found: int) -> None:
        """Compares a size of the config with the one of the tensors."""
        said = self.own.get(key)
        if said != found:
            raise UserError(
                f"{self.path}: {key} is {str(said)[:80]}, but {WEIGHTS_FILE} "
                f"has {found}; the description contradicts the tensors"
            )


def _is_number(scaling: Any) -> bool:
    """Whether a value of a description is a number above 0."""
    return isinstance(scaling, (int, float)) and scaling > 0


def read(
    path: str, config: BertConfig, labels: Tuple[str, ...]
) -> Tuple[TuningMethod, Arrays, Head, Dict[str, Any]]:
    """Reads an adapter of `save_adapter`, as `exchange` wants it."""
    described = files.read_object(path, "AdapterHub's description", CONFIG)
    found = (described["model_type"], described["hidden_size"])
    if found != ("bert", config.hidden_size):
        raise UserError(
            f"{path} is of a {found[0]} with hidden size {found[1]}, expected "
            f"a bert with {config.hidden_size}"
        )
    own = _as_of_now(described)
    architecture = own.get("architecture")
    readers: Dict[Any, Any] = {
        None: (_read_bottleneck, foreign_fields.HUB_BOTTLENECK),
        "lora": (_read_lora, foreign_fields.HUB_LORA),
        "prefix_tuning": (_read_prefix, foreign_fields.HUB_PREFIX),
    }
    if architecture not in readers:
        raise UserError(
            f"{path}: no method of this project computes what "
            f"{architecture!r} is; expected bottleneck adapters, lora, "
            "(IA)^3 of keys and values, or prefix_tuning"
        )
    reader, known = readers[architecture]
    foreign_fields.check(described, foreign_fields.HUB_FILE, path, is_open=True)
    foreign_fields.check(own, known, path)
    adapter = _Adapter(own, config, path, described["name"])
    method, values = reader(adapter)
    adapter.check_all_taken()
    head = _read_head(os.path.dirname(path), config, labels)
    origin = {"version": described.get("version"), "name": described["name"]}
    return method, values, head, origin


def _as_of_now(described: Mapping[str, Any]) -> Dict[str, Any]:
    """The config as the library reads it, whatever version has written it.

    Source: `load_weights_config` and `_fix_backward_compat` of the library.
    """
    own, version = dict(described["config"]), described.get("version")
    if version is None and "non_linearity" in own:
        name = own["non_linearity"]
        older = {"gelu": "gelu_new", "gelu_orig": "gelu"}
        own["non_linearity"] = older.get(name, name)
    if own.get("architecture") == "lora" and "alpha" in own:
        # Before 1.1 the library did not divide by the rank.
        if re.match(r"adapters\.(0|1\.0)\.", version or ""):
            own["alpha"] = own.get("r")
    return own


def _read_head(
    folder: str, config: BertConfig, labels: Tuple[str, ...]
) -> Head:
    """Reads an adapter's head; empty `labels` stand for the file's."""
    path = os.path.join(folder, HEAD_CONFIG_FILE)
    if not files.exists(path):
        raise UserError(
            f"{folder} holds an adapter without a head ({HEAD_CONFIG_FILE} is "
            "missing), which answers nothing; save it with its head"
        )
    described = files.read_object(path, "AdapterHub's head", HEAD_CONFIG)
    foreign_fields.check(described, foreign_fields.HUB_FILE, path, is_open=True)
    hidden = config.hidden_size
    for key, expected in (("model_type", "bert"), ("hidden_size", hidden)):
        if described.get(key) not in (None, expected):
            raise UserError(
                f"{path}: {key} is {described[key]!r}, expected {expected!r}"
            )
    tensors = Tensors(folder, HEAD_WEIGHTS_FILE, HEAD_PICKLE)
    model_class = described["model_class"]
    if model_class in STATIC_HEADS:
        own, name = described, STATIC_HEADS[model_class]
        questions, shape = name == "qa_outputs", POOLED
        layers = [tensors.take_layer(name, own.get("num_labels"), hidden)]
    elif model_class in FLEXIBLE:
        own = described.get("config") or {}
        questions = own.get("head_type") == "question_answering"
        shape, layers = _read_flexible(
            own, f"heads.{described.get('name')}", tensors, hidden, path
        )
    else:
        raise UserError(
            f"{path}: the head is of a {model_class}, expected one of "
            f"{', '.join((*FLEXIBLE, *STATIC_HEADS))}"
        )
    head = make_head(
        questions, layers, shape, own.get("label2id"), labels, path
    )
    tensors.check_all_taken()
    return head


def _read_flexible(
    own: Mapping[str, Any],
    prefix: str,
    tensors: Tensors,
    hidden: int,
    path: str,
) -> Tuple[HeadShape, List[Layer]]:
    """The shape and the layers of a head of the library's own."""
    kind, count = own.get("head_type"), own.get("layers")
    if kind not in ("classification", "question_answering"):
        raise UserError(
            f"{path}: a head of the type {kind!r} is not read; expected "
            "classification or question_answering"
        )
    foreign_fields.check(own, foreign_fields.HUB_HEAD, path)
    if not isinstance(count, int) or count < 1:
        raise UserError(f"{path}: the head has {count!r} layers")
    bias, name = own.get("bias", True), own.get("activation_function")
    shape = HeadShape(
        layers=count, pooler=bool(own.get("use_pooler")), bias=bias
    )
    if count > 1:
        known = activation(name or "linear", path)
        shape = dataclasses.replace(shape, activation=known)
    # Modules are numbered: dropout, dense layer, activation if there is one.
    places = [f"{prefix}.{1 + (3 if name else 2) * n}" for n in range(count)]
    layers = [tensors.take_layer(p, hidden, hidden) for p in places[:-1]]
    outputs = own.get("num_labels", 2)
    layers.append(tensors.take_layer(places[-1], outputs, hidden, bias))
    return shape, layers


def _bottleneck_kind(own: Mapping[str, Any], path: str) -> Type[TuningMethod]:
    """The method of this project that a bottleneck's config describes."""
    before, residual = own["original_ln_before"], own["residual_before_ln"]
    attention, parallel = bool(own.get("mh_adapter")), own["is_parallel"]
    inverse = own["inv_adapter"]
    pfeiffer = before and residual is True and not attention and not parallel
    if inverse is not None and not (pfeiffer and inverse == NICE):
        raise UserError(
            f"{path}: inv_adapter is {inverse!r}: no method of this "
            f"project has such invertible adapters; expected {NICE!r}, and the "
            "other adapters as in seq_bn_inv"
        )
    if pfeiffer:
        return Pfeiffer if inverse is None else MadX
    if parallel and attention:
        raise UserError(
            f"{path}: adapters beside the attention are not read, only beside "
            "the feed-forward sublayer (mh_adapter=false)"
        )
    if parallel:
        return Parallel
    if not before and residual in (True, False):
        return Houlsby
    raise UserError(
        f"{path}: original_ln_before={before}, residual_before_ln={residual!r} "
        f"and mh_adapter={attention} together are no method of this project; "
        "expected those of double_seq_bn, seq_bn or par_bn"
    )


def _read_bottleneck(adapter: _Adapter) -> Tuple[TuningMethod, Arrays]:
    """Bottleneck adapters; a scale goes into their second matrix."""
    config, path = adapter.config, adapter.path
    own = adapter.own = {**BOTTLENECK, **adapter.own}
    kind = _bottleneck_kind(own, path)
    arguments = {"nonlinearity": activation(own.get("non_linearity"), path)}
    values, found, sizes = {}, {}, set()
    hidden, half = config.hidden_size, config.hidden_size // 2

    def keep(scope: str, layers: Arrays) -> None:
        values.update({f"{scope}/{name}": v for name, v in layers.items()})

    if kind is MadX:
        size = None
        for name in ("F", "G"):
            parts = f"{name}.0", f"{name}.2"
            size, layers = adapter.take_dense(INVERTIBLE, parts, half, size)
            adapter.check_size("inv_adapter_reduction_factor", half, size)
            keep(f"{SCOPE}/{name}", layers)
        arguments["inverse_size"] = size
    sites = {scope.replace("/", "."): site for site, scope in SCOPES.items()}
    named = {
        place: SITE_FIELDS[site]
        for place, site in sites.items()
        if own.get(SITE_FIELDS[site])
    }
    for (layer, place), full in adapter.by_layer(named).items():
        size, layers = adapter.take_dense(full, PARTS_OF_ADAPTER, hidden)
        adapter.check_size("reduction_factor", hidden, size, str(layer))
        sizes.add(size)
        scale = _scale(adapter, kind, full)
        for name in ("weights2", "biases2"):
            layers[name] = layers[name] * scale
        site = sites[place]
        keep(f"bert/encoder/layer_{layer}/{SCOPES[site]}/adapters", layers)
        found.setdefault(site, set()).add(layer)
    layers_of_sites = list(map(sorted, found.values()))
    if len(sizes) != 1 or layers_of_sites[1:] not in ([], layers_of_sites[:1]):
        raise UserError(
            f"{path}: the adapters have the sizes {sorted(sizes)} and are in "
            f"the layers {layers_of_sites}; "
            "expected one size, and the same layers at both sites"
        )
    arguments["size"] = sizes.pop()
    if layers_of_sites[0] != list(range(config.num_hidden_layers)):
        arguments["layers"] = ",".join(map(str, layers_of_sites[0]))
    if kind is Parallel:
        scaling = own["scaling"]
        arguments["scale"] = float(scaling) if _is_number(scaling) else 1.0
    if kind is Houlsby:
        [site] = found if len(found) == 1 else ["both"]
        arguments.update(sites=site, layer_norms=False)
    return kind(**arguments), values


def _scale(
    adapter: _Adapter, kind: Type[TuningMethod], place: str
) -> np.ndarray:
    """A factor of an adapter's output that is not in the method's scale."""
    scaling = adapter.own["scaling"]
    if scaling == "learned":
        return adapter.take(place, "scaling", 1)
    if scaling == "channel":
        return adapter.take(place, "scaling", adapter.config.hidden_size)
    if not isinstance(scaling, (int, float)):
        raise UserError(
            f"scaling is {scaling!r}, expected a number, learned or channel"
        )
    check_number(scaling, "scaling")
    in_method = kind is Parallel and _is_number(scaling)
    return np.float32([1.0 if in_method else scaling])


def _read_lora(adapter: _Adapter) -> Tuple[TuningMethod, Arrays]:
    """LoRA, and (IA)^3, which is LoRA for this program."""
    own, path = adapter.own, adapter.path
    matrices = own.get("attn_matrices") or ()
    places = adapter.by_layer(
        {
            place: field
            for place, (_, field, letter) in LORA_PLACES.items()
            if own.get(field) and (not letter or letter in matrices)
        }
    )
    mode = own.get("composition_mode", "add")
    if mode == "scale":
        return _read_ia3(adapter, places)
    if mode != "add":
        raise UserError(
            f"{path}: composition_mode is {mode!r}, expected add or scale"
        )
    if own.get("alpha") is None:
        raise UserError(f"{path} has no alpha, which scales the updates")
    check_number(own["alpha"], f"{path}: alpha")
    found = {}
    for (layer, place), full in places.items():
        down = adapter.take(full, "lora_A", None, None)
        up = adapter.take(full, "lora_B", None, len(down))
        adapter.check_count("r", len(down))
        factors = peft.Factors(down.T, up.T, float(own["alpha"]))
        found[layer, LORA_PLACES[place][0]] = factors
    return peft.to_method(found, adapter.config, path)


def _read_ia3(
    adapter: _Adapter, places: Mapping[Tuple[int, str], str]
) -> Tuple[TuningMethod, Arrays]:
    """Scales of keys and values; others act elsewhere than this project's."""
    own, path = adapter.own, adapter.path
    alpha = 1 if own.get("alpha") is None else own["alpha"]
    adapter.check_count("r", 1)
    check_number(alpha, f"{path}: alpha")
    values = unit_scales(adapter.config)
    for (layer, place), full in places.items():
        name = place.replace(".", "/")
        if name not in KEY_VALUE:
            raise UserError(
                f"{path}: (IA)^3 scales {place} here, before the activation "
                "if at all, but T-Few's, which this project has, scales keys, "
                "values and what comes after the activation; expected "
                "intermediate_lora=false"
            )
        scale = adapter.take(full, "lora_B", adapter.config.hidden_size, 1)
        key = f"bert/encoder/layer_{layer}/{name}/ia3_scale"
        values[key] = scale[:, 0] * np.float32(alpha)
    return Ia3(), values


def _read_prefix(adapter: _Adapter) -> Tuple[TuningMethod, Arrays]:
    """A prefix, as the output of its network."""
    own, path, config = adapter.own, adapter.path, adapter.config
    table, hidden = "self_prefix.control_trans", config.hidden_size
    count = 2 * config.num_hidden_layers * hidden
    if own.get("flat"):
        rows = adapter.take(PREFIX, table, None)
        if rows.size % count:
            raise UserError(
                f"{path}: the prefix has {rows.size} numbers, expected a "
                f"multiple of {count}"
            )
        rows = rows.reshape(-1, count)
    else:
        words = adapter.take(PREFIX, "self_prefix.wte.weight", None, hidden)
        if own.get("non_linearity", "tanh") != "tanh":
            raise UserError(
                f"{path}: the prefix's network has the activation "
                f"{own['non_linearity']!r}, expected tanh"
            )
        inner = adapter.take(PREFIX, f"{table}.0.weight", None, hidden)
        size = len(inner)
        adapter.check_count("bottleneck_size", size)
        bias = adapter.take(PREFIX, f"{table}.0.bias", size)
        outer = adapter.take(PREFIX, f"{table}.2.weight", count, size)
        outer_bias = adapter.take(PREFIX, f"{table}.2.bias", count)
        rows = np.tanh(words @ inner.T + bias) @ outer.T + outer_bias
    adapter.check_count("prefix_length", len(rows))
    slices = iter(np.split(rows, 2 * config.num_hidden_layers, axis=1))
    values = {
        f"bert/encoder/layer_{layer}/attention/self/prefix/{name}": next(slices)
        for layer in range(config.num_hidden_layers)
        for name in PARTS
    }
    return Prefix(length=len(rows), reparameterize=False), values


def write(exported: Exported) -> Dict[str, Any]:
    """The contents of an adapter's files, as `exchange` wants them."""
    config, tensors = _write(exported.method, exported)
    common = {
        "hidden_size": exported.config.hidden_size,
        "model_class": FLEXIBLE[0],
        "model_name": exported.base_name,
        "model_type": "bert",
        "name": exported.name,
        "version": VERSION,
    }
    head_config, head = _write_head(exported.head, exported.name)
    return {
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: {"config": config, **common},
        HEAD_WEIGHTS_FILE: head,
        HEAD_CONFIG_FILE: {"config": head_config, **common},
    }


def _write(
    method: TuningMethod, exported: Exported
) -> Tuple[Dict[str, Any], Arrays]:
    """The config and the tensors of a method."""
    source = exported.source
    if isinstance(method, AdapterDrop):
        return _write(method.kept(exported.config), exported)
    if isinstance(method, Houlsby):
        if method.layer_norms:
            raise UserError(
                f"{source}: {method} has trained BERT's LayerNorms, which "
                "AdapterHub's files cannot hold; train "
                "--tuning_method='houlsby(layer_norms=false)' to export it"
            )
        if method.depth > 1 or method.layer_norm:
            raise UserError(
                f"{source}: {method} is not written for AdapterHub's "
                "library; expected depth=1 and layer_norm=false"
            )
        return _write_bottleneck(method, exported, SITES[method.sites])
    if isinstance(method, Pfeiffer):
        return _write_bottleneck(method, exported, original_ln_before=True)
    if isinstance(method, Parallel):
        return _write_bottleneck(
            method, exported, is_parallel=True, scaling=method.scale
        )
    if isinstance(method, MadX):
        return _write_mad_x(method, exported)
    if isinstance(method, Lora):
        return _write_lora(method, exported)
    if isinstance(method, Ia3):
        raise UserError(
            f"{source}: AdapterHub's (IA)^3 scales before the activation, "
            "not after it as T-Few's; write it for peft"
        )
    if isinstance(method, Prefix):
        return _write_prefix(method, exported)
    raise UserError(
        f"{source}: {method.name} is not written for AdapterHub's "
        "library; expected houlsby(layer_norms=false), pfeiffer, parallel, "
        "mad_x, lora or prefix"
    )


def _write_mad_x(method: MadX, exported: Exported):
    half = exported.config.hidden_size // 2
    config, tensors = _write_bottleneck(
        method,
        exported,
        original_ln_before=True,
        inv_adapter=NICE,
        inv_adapter_reduction_factor=half / (method.inverse_size + 0.5),
    )
    for name in ("F", "G"):
        prefix = f"bert.{INVERTIBLE}.{exported.name}.{name}"
        tensors.update(
            _give_dense(exported, f"{SCOPE}/{name}", prefix, ("0", "2"))
        )
    return config, tensors


def _give_dense(
    exported: Exported, scope: str, prefix: str, parts: Tuple[str, str]
) -> Arrays:
    """A scope's two dense layers as the library names them."""
    tensors: Arrays = {}
    for number, part in zip("12", parts):
        kernel = exported.read(f"{scope}/weights{number}")
        tensors[f"{prefix}.{part}.weight"] = kernel.T
        bias = exported.read(f"{scope}/biases{number}")
        tensors[f"{prefix}.{part}.bias"] = bias[0]
    return tensors


def _write_bottleneck(
    method: Any,
    exported: Exported,
    sites: Tuple[str, ...] = SITES["ffn"],
    **more: Any,
) -> Tuple[Dict[str, Any], Arrays]:
    """Bottleneck adapters of some sites, with more values of the config."""
    count = exported.config.num_hidden_layers
    layers = base.choose_layers(method.layers, exported.config)
    tensors: Arrays = {}
    for layer in layers:
        for site in sites:
            scope = f"bert/encoder/layer_{layer}/{SCOPES[site]}/adapters"
            place = SCOPES[site].replace("/", ".")
            prefix = (
                f"bert.encoder.layer.{layer}.{place}.adapters.{exported.name}"
            )
            tensors.update(
                _give_dense(exported, scope, prefix, PARTS_OF_ADAPTER)
            )
    config = {
        **BOTTLENECK,
        "mh_adapter": "attention" in sites,
        "output_adapter": "ffn" in sites,
        # The library divides by this and rounds down.
        "reduction_factor": exported.config.hidden_size / (method.size + 0.5),
        "non_linearity": foreign_activation(method.nonlinearity),
        "leave_out": sorted(set(range(count)) - set(layers)),
        "dropout": 0.0,
        "init_weights": "bert",
        **more,
    }
    return config, tensors


def _write_lora(method: Lora, exported: Exported):
    places = {target: place for place, (target, *_) in LORA_PLACES.items()}
    targets = method.targets.split(",")
    for target in targets:
        if target not in places:
            raise UserError(
                f"{exported.source}: LoRA at {target} is not written for "
                "AdapterHub's library; write it for peft"
            )
    tensors: Arrays = {}
    for layer in range(exported.config.num_hidden_layers):
        for target in targets:
            scope = f"bert/encoder/layer_{layer}/{TARGETS[target]}"
            prefix = (
                f"bert.encoder.layer.{layer}.{places[target]}.loras."
                f"{exported.name}"
            )
            tensors[f"{prefix}.lora_A"] = exported.read(f"{scope}/lora_a").T
            tensors[f"{prefix}.lora_B"] = exported.read(f"{scope}/lora_b").T
    attention = [t[0] for t in ("query", "key", "value") if t in targets]
    config = {
        "architecture": "lora",
        "selfattn_lora": bool(attention),
        "intermediate_lora": "intermediate" in targets,
        "output_lora": "output" in targets,
        "attn_matrices": attention,
        "r": method.rank,
        "alpha": as_lora_number(method.alpha),
        "dropout": method.dropout,
        "composition_mode": "add",
        "init_weights": "lora",
        "leave_out": [],
        "use_gating": False,
    }
    return config, tensors


def _write_prefix(method: Prefix, exported: Exported):
    rows = [
        exported.read(
            f"bert/encoder/layer_{layer}/attention/self/prefix/{part}"
        )
        for layer in range(exported.config.num_hidden_layers)
        for part in PARTS
    ]
    config = {
        "architecture": "prefix_tuning",
        "flat": True,
        "prefix_length": method.length,
        "encoder_prefix": True,
        "cross_prefix": True,
        "dropout": 0.0,
        "leave_out": [],
        "use_gating": False,
    }
    name = f"bert.prefix_tuning.prefix_tunings.{exported.name}.self_prefix"
    table = np.concatenate(rows, axis=1)  # [P, 2 L D]
    return config, {f"{name}.control_trans": table.ravel()}


def _write_head(head: Head, name: str) -> Tuple[Dict[str, Any], Arrays]:
    """The config and the tensors of a flexible head."""
    shape = head.shape
    has_activation = shape.layers > 1
    step = 3 if has_activation else 2
    tensors: Arrays = {}
    for number, (weights, bias) in enumerate(head.layers):
        prefix = f"heads.{name}.{1 + step * number}"
        tensors[f"{prefix}.weight"] = weights
        if bias is not None:
            tensors[f"{prefix}.bias"] = bias
    labels: List[str] = list(head.labels)
    if head.kind != CLASSIFICATION:
        labels = [f"LABEL_{i}" for i in range(len(head.layers[-1][0]))]
    config: Dict[str, Any] = {
        "head_type": "classification",
        "num_labels": len(labels),
        "layers": shape.layers,
        "activation_function": foreign_activation(shape.activation)
        if has_activation
        else None,
        "label2id": {label: number for number, label in enumerate(labels)},
        "dropout_prob": None,
    }
    if head.kind == QUESTIONS:
        return {**config, "head_type": "question_answering"}, tensors
    return {**config, "use_pooler": shape.pooler, "bias": shape.bias}, tensors
