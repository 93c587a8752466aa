"""Adapters of AdapterHub's library `adapters` 1.3, read and written.

After `AutoAdapterModel.load_adapter(folder, use_safetensors=True)` the library
computes the same as this project. Heads are in `adapterhub_heads.py`.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import (
    Any,
)

import numpy as np

from adapter_bert import files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import (
    foreign_fields,
)
from adapter_bert.checkpoints.hugging_face import as_bert, from_bert
from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    adapterhub_heads,
    adapterhub_reft,
    peft_lora,
)
from adapter_bert.exchange.foreign_base import (
    Adapter,
    Exported,
    Head,
    Tensors,
    activation,
    as_lora_number,
    check_depth,
    check_number,
    foreign_activation,
    is_of,
    module_of,
    unit_scales,
    usual_shape,
)
from adapter_bert.exchange.foreign_heads import HeadOptions
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import (
    AdapterDrop,
    Parallel,
    Pfeiffer,
)
from adapter_bert.methods.base import Part, TuningMethod
from adapter_bert.methods.composition import Union
from adapter_bert.methods.dora import Dora
from adapter_bert.methods.houlsby import SITES, Houlsby
from adapter_bert.methods.ia3 import KEY_VALUE, Ia3
from adapter_bert.methods.invertible import SCOPE, MadX
from adapter_bert.methods.lora import TARGETS, Lora, place_of
from adapter_bert.methods.prefix import Prefix, prefix_variables
from adapter_bert.methods.prompt import CLS, PROMPT, VIRTUAL, Prompt
from adapter_bert.methods.reft import LoReft
from adapter_bert.methods.vera import Vera
from adapter_bert.tasks.kinds import CHOICE, MASKED_LM, QUESTIONS, TAGGING

Arrays = dict[str, np.ndarray]

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE, TORCH_FILE = "adapter.safetensors", "pytorch_adapter.bin"
# A key that only this program's descriptions have.
MARK = "model_type"
# Tells the library how to read the rest.
VERSION = "adapters.1.3.0"
CONFIG = {
    "config": dict,
    "config.configs?": list,
    "config.configs?.[]": dict,
    **{
        f"{place}.{name}?": kind
        for place in ("config", "config.configs?.[]")
        for kind, names in {
            str: "architecture non_linearity combine",
            float: "alpha",
            list: "leave_out attn_matrices",
            int: "r prompt_length prefix_length bottleneck_size "
            "prefix_positions suffix_positions",
            bool: "mh_adapter output_adapter original_ln_before is_parallel "
            "selfattn_lora intermediate_lora output_lora flat use_gating "
            "shared_gating orthogonality tied_weights output_reft",
        }.items()
        for name in names.split()
    },
    "name": str,
    "model_type": str,
    "hidden_size": int,
    "version?": str,
}
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
# The architecture of several configs in one.
UNION = "union"
# The kind of invertible adapters that this project has.
NICE = "nice"
# Site -> the field that says whether there are adapters.
SITE_FIELDS = {"attention": "mh_adapter", "ffn": "output_adapter"}
# Name of `lora.TARGETS` -> the field that says whether it has updates; the
# letter of an attention's matrix in `attn_matrices`.
LORA_FIELDS = {
    "query": ("selfattn_lora", "q"),
    "key": ("selfattn_lora", "k"),
    "value": ("selfattn_lora", "v"),
    "intermediate": ("intermediate_lora", ""),
    "output": ("output_lora", ""),
}
# Variable -> tensor, which is its transpose, in the scopes of adapters, of an
# invertible adapter's two networks, and of updates.
IN_ADAPTER = {
    "weights1": "adapter_down.0.weight",
    "biases1": "adapter_down.0.bias",
    "weights2": "adapter_up.weight",
    "biases2": "adapter_up.bias",
}
IN_INVERTIBLE = {
    "weights1": "0.weight",
    "biases1": "0.bias",
    "weights2": "2.weight",
    "biases2": "2.bias",
}
IN_LORA = {
    "lora_a": "lora_A",
    "lora_b": "lora_B",
    "vera_d": "vera_D",
    "vera_b": "vera_B",
}
IN_GATE = {"kernel": "weight", "bias": "bias"}
# Ends of the scopes of a gate, and of a prefix in a layer.
GATE, IN_LAYER = "/gate", "/prefix"
# Before the names of a prefix's tensors; the adapter's name is left out.
PREFIX = "bert.prefix_tuning.prefix_tunings.{}.{}."
PROMPT_TENSOR = "bert.prompt_tuning.prompt_tunings.{}.prompt_embedding.weight"
# Kinds of heads that read every token.
OF_TOKENS = QUESTIONS, TAGGING, MASKED_LM
# Where virtual tokens are put -> what heads then read in the place of [CLS].
COMBINED = {"prefix": VIRTUAL, "prefix_after_bos": CLS}
# In the names of tensors of 2020, before the types of adapters went.
OLD_TENSOR = re.compile(r"_(?:text_(?:task|lang)|lang)_adapters\.")
# Places of tensors that may lack "bert." before them.
OF_BERT = re.compile(
    r"^(?=(?:encoder|invertible_adapters|prefix_tuning|prompt_tuning"
    r"|shared_parameters)\.)"
)
# Before the names of VeRA's A and B.
SHARED = "bert.shared_parameters.{}."


def _tensor(variable: str, name: str) -> str:
    """Names a variable's tensor in the adapter `name`."""
    scope, _, end = variable.rpartition("/")
    if variable == PROMPT:
        return PROMPT_TENSOR.format(name)
    if scope.endswith(GATE):
        place, end = scope[: -len(GATE)], IN_GATE[end]
        if place.endswith(IN_LAYER):
            module = module_of(place[: -len(IN_LAYER)])
            return f"{module}.prefix_tuning.prefix_gates.{name}.{end}"
        infix = "" if place.endswith("/adapters") else ".loras"
        return f"{module_of(place)}{infix}.{name}.gate.{end}"
    if end in IN_LORA:
        return f"{module_of(scope)}.loras.{name}.{IN_LORA[end]}"
    if scope.startswith(SCOPE):
        network = scope.rpartition("/")[2]
        end = f"{network}.{IN_INVERTIBLE[end]}"
        return f"bert.invertible_adapters.{name}.{end}"
    return f"{module_of(scope)}.{name}.{IN_ADAPTER[end]}"


def read(
    path: str, config: BertConfig, options: HeadOptions
) -> tuple[TuningMethod, Arrays, Head, dict[str, Any]]:
    """Reads an adapter of `save_adapter`, as `foreign_adapters` wants it.

    A language's adapter may be without a head; then BERT's own is meant.
    """
    method, values, origin = read_adapter(path, config)
    folder = os.path.dirname(path)
    head = Head(MASKED_LM, usual_shape(MASKED_LM))
    if adapterhub_heads.is_in(folder) or not isinstance(method, MadX):
        head = adapterhub_heads.read(folder, config, options)
    if head.kind in OF_TOKENS:
        method = _of_tokens(method)
    return method, values, head, origin


def _of_tokens(method: TuningMethod) -> TuningMethod:
    if isinstance(method, Prompt):
        return dataclasses.replace(method, heads_read=CLS)
    if isinstance(method, Union):
        parts = [Part(p.name, _of_tokens(p.method)) for p in method.parts]
        return dataclasses.replace(method, parts=tuple(parts))
    return method


def read_adapter(
    path: str, config: BertConfig
) -> tuple[TuningMethod, Arrays, dict[str, Any]]:
    """Reads an adapter of `save_adapter`, whatever its head.

    Returns the method, its float32 variables by name, and the origin.
    """
    described = files.read_object(path, "AdapterHub's description", CONFIG)
    check_model(described, config, path)
    fields, name = _as_of_now(described), described["name"]
    foreign_fields.check(described, foreign_fields.HUB_FILE, path, is_open=True)
    configs = _configs(fields, path)
    readers = [_reader(fields_of_one, path) for fields_of_one in configs]
    folder = os.path.dirname(path)
    tensors = Tensors(folder, WEIGHTS_FILE, TORCH_FILE)
    if any(map(OLD_TENSOR.search, tensors.names)):
        raise UserError(
            f"{path} is of AdapterHub's first version, which is not read; load "
            "it in the library of today, and save it again"
        )
    tensors.rename(
        lambda tensor: OF_BERT.sub("bert.", as_bert(tensor, config.model_type))
    )
    check_depth(tensors.names, config, path)
    # Copies: a prefix is in the model once, and in each layer.
    copies = f".prefix_tuning.pool.prefix_tunings.{name}."
    tensors.drop([tensor for tensor in tensors.names if copies in tensor])
    methods, values = [], {}
    for reader, fields_of_one in zip(readers, configs):
        adapter = Adapter(fields_of_one, tensors, config, path, name)
        method, added = reader(adapter)
        methods.append(method)
        values.update(added)
    if fields.get("architecture") == UNION:
        method = Union(tuple(Part("", one) for one in methods))
        _check_union(methods, path)
    tensors.check_all_taken()
    return method, values, {"version": described.get("version"), "name": name}


def check_model(
    described: Mapping[str, Any], config: BertConfig, path: str
) -> None:
    """Refuses a description of another kind of model."""
    kind, size = described["model_type"], described["hidden_size"]
    if not is_of(kind, config) or size != config.hidden_size:
        raise UserError(
            f"{path} is of a {kind[:80]} with hidden size {str(size)[:80]}, "
            f"expected a {config.model_type} with {config.hidden_size}"
        )


def _configs(fields: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    if fields.get("architecture") != UNION:
        return [fields]
    foreign_fields.check(fields, foreign_fields.HUB_UNION, path)
    if not fields.get("configs"):
        raise UserError(f"{path}: the union has no configs, so it is empty")
    return fields["configs"]


def _reader(fields: Mapping[str, Any], path: str) -> Any:
    readers: dict[Any, Any] = {
        None: (_read_bottleneck, foreign_fields.HUB_BOTTLENECK),
        "lora": (_read_lora, foreign_fields.HUB_LORA),
        "prefix_tuning": (_read_prefix, foreign_fields.HUB_PREFIX),
        "prompt_tuning": (_read_prompt, foreign_fields.HUB_PROMPT),
        adapterhub_reft.ARCHITECTURE: (
            adapterhub_reft.read,
            foreign_fields.HUB_REFT,
        ),
    }
    architecture = fields.get("architecture")
    if architecture not in readers:
        raise UserError(
            f"{path}: no method of this project computes what "
            f"{architecture!r:.80} is; expected bottleneck adapters, lora, "
            "(IA)^3 of keys and values, prefix_tuning, prompt_tuning, reft, or "
            "a union of them"
        )
    reader, listed = readers[architecture]
    foreign_fields.check(fields, listed, path)
    return reader


def _as_of_now(described: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the config as the library does, whatever version has written it.

    Source: `load_weights_config`, `_fix_backward_compat` and
    `BnConfig.__setattr__` of the library.
    """
    fields, version = dict(described["config"]), described.get("version")
    if version is None and "non_linearity" in fields:
        name = fields["non_linearity"]
        older = {"gelu": "gelu_new", "gelu_orig": "gelu"}
        fields["non_linearity"] = older.get(name, name)
    if fields.get("architecture") == "lora" and "alpha" in fields:
        # Before 1.1 the library did not divide by the rank.
        if re.match(r"adapters\.(0|1\.0)\.", version or ""):
            fields["alpha"] = fields.get("r")
    return fields


def _bottleneck_kind(
    fields: Mapping[str, Any], path: str
) -> type[TuningMethod]:
    before, residual = (
        fields["original_ln_before"],
        fields["residual_before_ln"],
    )
    attention, parallel = bool(fields.get("mh_adapter")), fields["is_parallel"]
    inverse = fields["inv_adapter"]
    pfeiffer = before and residual is True and not attention and not parallel
    if inverse is not None and not (pfeiffer and inverse == NICE):
        raise UserError(
            f"{path}: inv_adapter is {inverse!r:.80}: no method of this "
            f"project has such invertible adapters; expected {NICE!r}, and the "
            "other adapters as in seq_bn_inv"
        )
    if pfeiffer:
        return Pfeiffer if inverse is None else MadX
    if parallel and attention:
        raise UserError(
            f"{path}: adapters next to the attention are not read, only next "
            "to the feed-forward sublayer (mh_adapter=false)"
        )
    if parallel:
        return Parallel
    if not before and residual in (True, False):
        return Houlsby
    raise UserError(
        f"{path}: original_ln_before={before}, "
        f"residual_before_ln={residual!r:.80} and mh_adapter={attention} "
        "together name no method of this project; expected the values of "
        "double_seq_bn, seq_bn or par_bn"
    )


def _layers(adapter: Adapter) -> list[int]:
    layers = list(range(adapter.config.num_hidden_layers))
    for layer in adapter.fields.get("leave_out") or ():
        if type(layer) is not int or not 0 <= layer < len(layers):
            raise UserError(
                f"{adapter.path}: leave_out names the layer "
                f"{str(layer)[:80]}, expected numbers from 0 to "
                f"{len(layers) - 1}"
            )
    return [
        n for n in layers if n not in (adapter.fields.get("leave_out") or ())
    ]


def _size(adapter: Adapter, key: str, whole: int, layer: str = "") -> int:
    """A size: `whole` divided by the factor at `key`, or by a layer's."""
    value = factor = adapter.fields.get(key)
    if isinstance(factor, dict):
        factor = factor.get(layer, factor.get("default"))
    if not _is_number(factor) or whole // factor == float("inf"):
        raise UserError(
            f"{adapter.path}: {key} is {str(value)[:80]}, expected a number "
            "above 0, or one for each layer"
        )
    # As the library rounds.
    return int(max(1, whole // factor))


def _count(adapter: Adapter, key: str) -> int:
    value = adapter.fields.get(key)
    if not isinstance(value, int) or value < 1:
        raise UserError(
            f"{adapter.path}: {key} is {str(value)[:80]}, expected a whole "
            "number above 0"
        )
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _read_bottleneck(adapter: Adapter) -> tuple[TuningMethod, Arrays]:
    """Bottleneck adapters; a scale goes into their second matrix."""
    config, path = adapter.config, adapter.path
    adapter = adapter._replace(fields={**BOTTLENECK, **adapter.fields})
    fields, scaling = adapter.fields, adapter.fields["scaling"]
    is_number = isinstance(scaling, (int, float))
    if is_number:
        check_number(scaling, f"{path}: scaling")
    elif scaling not in ("learned", "channel"):
        raise UserError(
            f"{path}: scaling is {str(scaling)[:80]!r}, expected a number, "
            "learned or channel"
        )
    kind, layers = _bottleneck_kind(fields, path), _layers(adapter)
    sites = [site for site, field in SITE_FIELDS.items() if fields.get(field)]
    _check_sites(sites, config, path)
    hidden = config.hidden_size
    sizes = {
        n: _size(adapter, "reduction_factor", hidden, str(n)) for n in layers
    }
    if not (layers and sites):
        raise UserError(
            f"{path}: the adapters are in {len(layers)} layers, at "
            f"{len(sites)} sites; expected layers that leave_out does not "
            "name, and mh_adapter or output_adapter"
        )
    # The size of most layers.
    size = max(sizes.values(), key=list(sizes.values()).count)
    others = {n: other for n, other in sizes.items() if other != size}
    arguments: dict[str, Any] = {
        "size": size,
        "nonlinearity": activation(fields.get("non_linearity"), path),
    }
    if kind is not MadX:
        arguments["sizes"] = base.sizes_text(others)
        arguments["gating"] = bool(fields["use_gating"])
    elif others or fields["use_gating"]:
        raise UserError(
            f"{path}: adapters with inv_adapter have sizes by layer "
            f"({sorted(set(sizes.values()))}) or use_gating, which no method "
            "of this project has"
        )
    if len(layers) < config.num_hidden_layers:
        arguments["layers"] = ",".join(map(str, layers))
    if kind is MadX:
        half = config.embedding_width // 2
        key = "inv_adapter_reduction_factor"
        arguments["inverse_size"] = _size(adapter, key, half)
    if kind is Parallel:
        arguments["scale"] = float(scaling) if _is_number(scaling) else 1.0
    if kind is Houlsby:
        [site] = sites if len(sites) == 1 else ["both"]
        arguments.update(sites=site, layer_norms=False)
    method = kind(**arguments)
    values = {}
    for variable, added in method.variables(config).items():
        if GATE in variable:
            continue
        # A bias has a first axis here.
        *_, rows, columns = shape = added.shape
        wanted = (columns, rows) if "/weights" in variable else (columns,)
        value = adapter.tensors.take(_tensor(variable, adapter.name), *wanted)
        values[variable] = value.T.reshape(shape)
    for scope in method.scopes(config).values():
        if is_number:
            in_method = kind is Parallel and _is_number(scaling)
            scale = np.float32([1.0 if in_method else scaling])
        else:
            scale = adapter.tensors.take(
                f"{module_of(scope)}.{adapter.name}.scaling",
                1 if scaling == "learned" else hidden,
            )
        for name in ("weights2", "biases2"):
            values[f"{scope}/{name}"] = values[f"{scope}/{name}"] * scale
    return method, {**values, **_take_gates(adapter, method)}


def _check_sites(sites: Iterable[str], config: BertConfig, source: str) -> None:
    """Refuses adapters after an ALBERT's attention.

    There the library gives them the layer's input. Source: its
    `AlbertAttentionWithAdapters`.
    """
    if config.num_hidden_groups and "attention" in sites:
        raise UserError(
            f"{source}: AdapterHub's library has adapters after the attention "
            "of an ALBERT, which read the layer's input there; expected "
            "adapters after the feed-forward sublayer alone (sites='ffn')"
        )


def _check_prompt(config: BertConfig, source: str) -> None:
    """Refuses prompts of a model that projects its embeddings.

    There the library's prompts are projected, too. Source: its
    `PromptTuningLayer`.
    """
    if config.embedding_size:
        raise UserError(
            f"{source}: prompts of AdapterHub's library go through the model's "
            "projection of embeddings, but this project's stand after it; "
            "expected another method, as prefix"
        )


def _take_gates(adapter: Adapter, method: TuningMethod) -> Arrays:
    gates = {}
    for variable, added in method.variables(adapter.config).items():
        if GATE in variable:
            name = _tensor(variable, adapter.name)
            value = adapter.tensors.take(name, *reversed(added.shape))
            gates[variable] = value.T
    return gates


def _read_lora(adapter: Adapter) -> tuple[TuningMethod, Arrays]:
    """LoRA, and VeRA and (IA)^3, which are LoRA for this program.

    VeRA there has whole matrices in place of scales, so its products are LoRA.
    """
    fields, path, rank = adapter.fields, adapter.path, _count(adapter, "r")
    matrices = fields.get("attn_matrices") or ()
    places = [
        (layer, target, f"bert/encoder/layer_{layer}/{TARGETS[target]}")
        for layer in _layers(adapter)
        for target, (field, letter) in LORA_FIELDS.items()
        if fields.get(field) and (not letter or letter in matrices)
    ]

    def take(scope: str, end: str, *shape: Any) -> np.ndarray:
        name = _tensor(f"{scope}/{end}", adapter.name)
        return adapter.tensors.take(name, *shape)

    mode = fields.get("composition_mode", "add")
    if mode == "scale":
        return _read_ia3(adapter, places, take)
    if mode != "add":
        raise UserError(
            f"{path}: composition_mode is {mode!r:.80}, expected add or scale"
        )
    gating = bool(fields.get("use_gating"))
    if gating:
        if fields.get("leave_out"):
            raise UserError(
                f"{path}: leave_out and use_gating together are not read of "
                "LoRA; expected one of them"
            )
        # Not used there either.
        fields = {**fields, "alpha": rank}
    if fields.get("alpha") is None:
        raise UserError(f"{path} has no alpha, which scales the updates")
    check_number(fields["alpha"], f"{path}: alpha")
    updates, is_vera = {}, _is_vera(fields)
    if is_vera:
        shared_down, shared_up = (
            adapter.tensors.take(SHARED.format(adapter.name) + end, *shape)
            for end, shape in (
                ("lora_A", (rank, None)),
                ("lora_B", (None, rank)),
            )
        )
    for layer, target, scope in places:
        if is_vera:
            size = len(shared_up)
            down = take(scope, "vera_d", rank, rank) @ shared_down
            up = take(scope, "vera_b", size, size) @ shared_up
        else:
            down = take(scope, "lora_a", rank, None)
            up = take(scope, "lora_b", None, rank)
        factors = peft_lora.Update(down.T, up.T, float(fields["alpha"]))
        updates[layer, target] = factors
    method, values = peft_lora.to_method(updates, adapter.config, path)
    method = dataclasses.replace(method, gating=gating)
    return method, {**values, **_take_gates(adapter, method)}


def _is_vera(fields: Mapping[str, Any]) -> bool:
    """True for VeRA: its initial values are floats."""
    return any(
        isinstance(fields.get(key), float) for key in ("vera_d", "vera_b")
    )


def _read_ia3(adapter: Adapter, places: Any, take: Any):
    """Scales of keys and values; others act elsewhere than this project's."""
    fields, path = adapter.fields, adapter.path
    alpha = 1 if fields.get("alpha") is None else fields["alpha"]
    if fields["r"] != 1:
        raise UserError(f"{path}: r is {fields['r']}, expected 1 for (IA)^3")
    check_number(alpha, f"{path}: alpha")
    values = unit_scales(adapter.config)
    for _, target, scope in places:
        if TARGETS[target] not in KEY_VALUE:
            raise UserError(
                f"{path}: (IA)^3 scales {TARGETS[target].replace('/', '.')} "
                "here, before the activation if at all, but T-Few's, which "
                "this project has, scales keys, values and what comes after "
                "the activation; expected intermediate_lora=false"
            )
        scale = take(scope, "lora_b", adapter.config.hidden_size, 1)
        values[f"{scope}/ia3_scale"] = scale[:, 0] * np.float32(alpha)
    return Ia3(), values


def _read_prefix(adapter: Adapter) -> tuple[TuningMethod, Arrays]:
    fields, path, hidden = (
        adapter.fields,
        adapter.path,
        adapter.config.hidden_size,
    )
    layers = adapter.config.num_hidden_layers
    length = _count(adapter, "prefix_length")
    width = 2 * layers * hidden

    def take(end: str, *shape: int) -> np.ndarray:
        architecture = ARCHITECTURES[adapter.config.model_type]
        scope = PREFIX.format(adapter.name, architecture.prefixes)
        return adapter.tensors.take(scope + end, *shape)

    if fields.get("flat"):
        rows = take("control_trans", length * width).reshape(length, width)
    else:
        if fields.get("non_linearity", "tanh") != "tanh":
            raise UserError(
                f"{path}: the prefix's network has the activation "
                f"{fields['non_linearity']!r}, expected tanh"
            )
        size = _count(adapter, "bottleneck_size")
        words = take("wte.weight", length, hidden)
        inner = take("control_trans.0.weight", size, hidden)
        bias = take("control_trans.0.bias", size)
        outer = take("control_trans.2.weight", width, size)
        outer_bias = take("control_trans.2.bias", width)
        rows = np.tanh(words @ inner.T + bias) @ outer.T + outer_bias
    method = Prefix(
        length,
        reparameterize=False,
        gating=bool(fields.get("use_gating")),
        shared_gating=fields.get("shared_gating", True) is not False,
    )
    slices = zip(prefix_variables(layers), np.split(rows, 2 * layers, axis=1))
    return method, {**dict(slices), **_take_gates(adapter, method)}


def _read_prompt(adapter: Adapter) -> tuple[TuningMethod, Arrays]:
    """Virtual tokens, whose order is of no matter but to heads."""
    combine = adapter.fields.get("combine", "prefix")
    if combine not in COMBINED:
        raise UserError(
            f"{adapter.path}: combine is {str(combine)[:80]}, expected "
            f"{' or '.join(COMBINED)}"
        )
    _check_prompt(adapter.config, adapter.path)
    length = _count(adapter, "prompt_length")
    name = PROMPT_TENSOR.format(adapter.name)
    prompt = adapter.tensors.take(name, length, adapter.config.hidden_size)
    return Prompt(length, COMBINED[combine]), {PROMPT: prompt}


def write(exported: Exported) -> dict[str, Any]:
    """Returns the contents of an adapter's files, by name."""
    return {**adapter_files(exported), **head_files(exported)}


def adapter_files(exported: Exported) -> dict[str, Any]:
    """Returns the contents of an adapter's files without its head's."""
    method = exported.method
    if isinstance(method, AdapterDrop):
        method = method.kept(exported.config)
    if isinstance(method, Union):
        methods = [one.method for one in method.parts]
        _check_union(methods, exported.source)
        config = _unite([_describe(one, exported) for one in methods], exported)
    else:
        methods, config = [method], _describe(method, exported)
    tensors: Arrays = {}
    for one in methods:
        tensors.update(_tensors(one, exported))
    model_type = exported.config.model_type
    tensors = {from_bert(k, model_type): v for k, v in tensors.items()}
    return {
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: {"config": config, **description(exported)},
    }


def head_files(exported: Exported) -> dict[str, Any]:
    """Returns the contents of a head's files, by name."""
    if exported.head is None:
        return {}
    config, more, tensors = adapterhub_heads.write(
        exported.head, exported.name, exported.config, exported.source
    )
    return {
        adapterhub_heads.WEIGHTS_FILE: tensors,
        adapterhub_heads.CONFIG_FILE: {
            "config": config,
            **more,
            **description(exported),
        },
    }


def description(exported: Exported) -> dict[str, Any]:
    """Returns the fields that all of the library's descriptions have."""
    return {
        "hidden_size": exported.config.hidden_size,
        "model_class": adapterhub_heads.flexible(exported.config)[0],
        "model_name": exported.base_name,
        "model_type": exported.config.model_type,
        "name": exported.name,
        "version": VERSION,
    }


def _tensors(method: TuningMethod, exported: Exported) -> Arrays:
    if isinstance(method, LoReft):
        return adapterhub_reft.tensors(method, exported)
    name, names, tensors = exported.name, [], {}
    if isinstance(method, Prefix):
        names = prefix_variables(exported.config.num_hidden_layers)
        table = np.concatenate(list(map(exported.read, names)), axis=1)
        architecture = ARCHITECTURES[exported.config.model_type]
        scope = PREFIX.format(name, architecture.prefixes)
        tensors = {f"{scope}control_trans": table.ravel()}
    for variable in method.variables(exported.config):
        if variable not in names:
            value = exported.read(variable)
            # A bias has a first axis here.
            is_bias = "/biases" in variable
            if variable != PROMPT:
                value = value[0] if is_bias else value.T
            tensors[_tensor(variable, name)] = value
    return tensors


def _check_union(methods: Sequence[TuningMethod], source: str) -> None:
    kinds = [type(method) for method in methods]
    if Prompt in kinds and LoReft in kinds:
        raise UserError(
            f"{source}: a union of prompt tuning and ReFT is not exchanged: "
            "AdapterHub's library counts virtual tokens among the first of a "
            "text, which ReFT moves"
        )


def _unite(configs: list[dict[str, Any]], exported: Exported) -> dict[str, Any]:
    kinds = [c["architecture"] for c in configs if "architecture" in c]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise UserError(
                f"{exported.source}: two parts of {exported.method} are of "
                f"AdapterHub's architecture {kind}, which has one in a union"
            )
    return {"architecture": UNION, "configs": configs}


def _describe(method: TuningMethod, exported: Exported) -> dict[str, Any]:
    reason, kind = None, exported.head.kind if exported.head else ""
    if isinstance(method, Houlsby) and method.layer_norms:
        reason = (
            f"{method} has trained BERT's LayerNorms, which AdapterHub's "
            "files cannot hold; train "
            "--tuning_method='houlsby(layer_norms=false)' to export it"
        )
    elif isinstance(method, Houlsby) and (
        method.depth > 1 or method.layer_norm
    ):
        reason = (
            f"{method} is not written for AdapterHub's library; expected "
            "depth=1 and layer_norm=false"
        )
    elif isinstance(method, Ia3):
        reason = (
            "AdapterHub's (IA)^3 scales before the activation, not after it as "
            "T-Few's; write it for peft"
        )
    elif isinstance(method, Dora):
        reason = (
            "AdapterHub's DoRA scales BERT's biases too, as the paper's does "
            "not; write it for peft"
        )
    elif isinstance(method, Vera):
        reason = (
            "AdapterHub's VeRA trains whole matrices in place of scales; write "
            "it for peft"
        )
    elif isinstance(method, Lora):
        others = set(method.targets.split(",")) - set(LORA_FIELDS)
        matrices = method.matrices(exported.config)
        if others:
            reason = (
                f"LoRA at {min(others)} is not written for AdapterHub's "
                "library; write it for peft"
            )
        elif len(set(matrices.values())) > 1 or len(matrices) != (
            len(_layers_of(matrices)) * len(method.targets.split(","))
        ):
            reason = (
                "LoRA of several ranks or alphas, or at other matrices in some "
                "layers than in others, is not written for AdapterHub's "
                "library; write it for peft"
            )
    elif kind == CHOICE and (
        isinstance(method, (LoReft, Prompt))
        or isinstance(method, Prefix)
        and method.gating
    ):
        reason = (
            f"AdapterHub's library fails at {method} with a head of {kind}, or "
            "lets the padding of such rows change the answer"
        )
    elif isinstance(method, Prompt):
        if kind in OF_TOKENS and method.heads_read == VIRTUAL:
            reason = (
                f"{method} puts a virtual token into the place of [CLS], which "
                f"AdapterHub's heads of {kind} have next to it"
            )
    elif isinstance(method, LoReft):
        return adapterhub_reft.describe(method, exported)
    elif not isinstance(method, (Houlsby, Pfeiffer, Parallel, MadX, Prefix)):
        reason = (
            f"{method.name} is not written for AdapterHub's library; expected "
            "houlsby(layer_norms=false), pfeiffer, parallel, mad_x, lora, "
            "prefix, prompt, loreft, or a union of them; write each adapter of "
            "a composition alone"
        )
    if reason:
        raise UserError(f"{exported.source}: {reason}")
    if isinstance(method, Prompt):
        _check_prompt(exported.config, exported.source)
        combined = {read: combine for combine, read in COMBINED.items()}
        return {
            "architecture": "prompt_tuning",
            "prompt_length": method.length,
            "prompt_init": "random_uniform",
            "combine": combined[method.heads_read],
        }
    if isinstance(method, Prefix):
        config = {
            "architecture": "prefix_tuning",
            "flat": True,
            "prefix_length": method.length,
            "encoder_prefix": True,
            "cross_prefix": True,
            "dropout": 0.0,
            "leave_out": [],
            "use_gating": method.gating,
        }
        if method.gating:
            config["shared_gating"] = method.shared_gating
        return config
    if isinstance(method, Lora):
        targets = method.targets.split(",")
        matrices = method.matrices(exported.config)
        rank, _, scale = next(iter(matrices.values()))
        attention = [t[0] for t in ("query", "key", "value") if t in targets]
        return {
            "architecture": "lora",
            "selfattn_lora": bool(attention),
            "intermediate_lora": "intermediate" in targets,
            "output_lora": "output" in targets,
            "attn_matrices": attention,
            "r": rank,
            "alpha": as_lora_number(scale * rank),
            "dropout": method.dropout,
            "composition_mode": "add",
            "init_weights": "lora",
            "leave_out": sorted(
                set(range(exported.config.num_hidden_layers))
                - _layers_of(matrices)
            ),
            "use_gating": method.gating,
        }
    hidden, sites = exported.config.hidden_size, SITES[method.sites]
    _check_sites(sites, exported.config, exported.source)
    layers = base.choose_layers(method.layers, exported.config)
    every = range(exported.config.num_hidden_layers)
    # The library divides by these and rounds down.
    factors = {"default": hidden / (method.size + 0.5)}
    for layer, size in base.layer_sizes(method.sizes).items():
        factors[str(layer)] = hidden / (size + 0.5)
    config = {
        **BOTTLENECK,
        "original_ln_before": isinstance(method, (Pfeiffer, MadX)),
        "is_parallel": isinstance(method, Parallel),
        "mh_adapter": "attention" in sites,
        "output_adapter": "ffn" in sites,
        "reduction_factor": factors["default"],
        "use_gating": method.gating,
        "non_linearity": foreign_activation(method.nonlinearity),
        "leave_out": sorted(set(every) - set(layers)),
        "dropout": 0.0,
        "init_weights": "bert",
    }
    if method.sizes:
        config["reduction_factor"] = factors
    if isinstance(method, Parallel):
        config["scaling"] = method.scale
    if isinstance(method, MadX):
        half = exported.config.embedding_width // 2
        factor = half / (method.inverse_size + 0.5)
        config.update(inv_adapter=NICE, inv_adapter_reduction_factor=factor)
    return config


def _layers_of(scopes: Iterable[str]) -> set[int]:
    return {place_of(scope)[0] for scope in scopes}
