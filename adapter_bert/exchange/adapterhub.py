"""Adapters of AdapterHub's library `adapters` 1.3, read and written.

After `AutoAdapterModel.load_adapter(folder, use_safetensors=True)` the library
computes the same as this project. Heads are in `adapterhub_heads.py`.

Sources: `BnConfig`, `LoRAConfig`, `PrefixTuningConfig`, `PromptTuningConfig`,
`ReftConfig` and `build_full_config` of `adapters` 1.3.0. The table in
results/exchange.md says what each field decides.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.checkpoints.foreign_tensors import Tensors, check_shape
from adapter_bert.checkpoints.hugging_face_heads import as_bert, from_bert
from adapter_bert.errors import UserError
from adapter_bert.exchange import adapterhub_heads, specs
from adapter_bert.exchange.foreign_base import (
    ACTIVATIONS,
    FOREIGN_ACTIVATIONS,
    Exported,
    Head,
    as_lora_number,
    check_number,
    is_of,
    lora_of,
    module_of,
    unit_scales,
    usual_shape,
)
from adapter_bert.exchange.foreign_heads import HeadOptions
from adapter_bert.exchange.specs import Adapter, Arrays, Field, Spec
from adapter_bert.methods import base
from adapter_bert.methods.adapter_variants import (
    AdapterDrop,
    Parallel,
    Pfeiffer,
)
from adapter_bert.methods.base import ALL_LAYERS, Part, TuningMethod
from adapter_bert.methods.composition import Union
from adapter_bert.methods.houlsby import SITES, BottleneckMethod, Houlsby
from adapter_bert.methods.ia3 import Ia3
from adapter_bert.methods.invertible import SCOPE, MadX
from adapter_bert.methods.lora import Lora, place_of, places, scope_of
from adapter_bert.methods.prefix import (
    NETWORK,
    Prefix,
    prefix_variables,
    prefixes,
)
from adapter_bert.methods.prompt import CLS, PROMPT, VIRTUAL, Prompt
from adapter_bert.methods.reft import (
    BIAS,
    PROJECTION,
    SOURCE,
    LoReft,
    reflected,
)
from adapter_bert.tasks.kinds import CHOICE, MASKED_LM, QUESTIONS, TAGGING

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
# The architecture of several configs in one, and its fields.
UNION = "union"
UNION_FIELDS = dict.fromkeys(("architecture", "configs"))
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
# Where virtual tokens are put -> what heads then read in the place of [CLS].
COMBINED = {"prefix": VIRTUAL, "prefix_after_bos": CLS}
# End of a variable -> tensor; {} is the module of what stands before.
TENSORS = {
    "/weights1": "{}.{name}.adapter_down.0.weight",
    "/biases1": "{}.{name}.adapter_down.0.bias",
    "/weights2": "{}.{name}.adapter_up.weight",
    "/biases2": "{}.{name}.adapter_up.bias",
    "/lora_a": "{}.loras.{name}.lora_A",
    "/lora_b": "{}.loras.{name}.lora_B",
    PROMPT: "bert.prompt_tuning.prompt_tunings.{name}.prompt_embedding.weight",
}
for _theirs, _ours in (("weight", "kernel"), ("bias", "bias")):
    for _scope, _module in (
        ("/adapters", "{}.adapters.{name}.gate"),
        ("/prefix", "{}.prefix_tuning.prefix_gates.{name}"),
        ("", "{}.loras.{name}.gate"),
    ):
        TENSORS[f"{_scope}/gate/{_ours}"] = f"{_module}.{_theirs}"
for _side, _number in {"both": 0, "first": 0, "last": 1}.items():
    for _ours, _theirs in {
        SOURCE: "learned_source.weight",
        BIAS: "learned_source.bias",
        PROJECTION: "projection.weight",
    }.items():
        TENSORS[f"/output/reft/{_side}/{_ours}"] = (
            f"{{}}.reft_layer.refts.{{name}}.units.{_number}.{_theirs}"
        )
for _network in "FG":
    for _ours, _theirs in {
        "weights1": "0.weight",
        "biases1": "0.bias",
        "weights2": "2.weight",
        "biases2": "2.bias",
    }.items():
        TENSORS[f"{SCOPE}/{_network}/{_ours}"] = (
            f"bert.invertible_adapters.{{name}}.{_network}.{_theirs}"
        )
# Before the names of a prefix's tensors.
PREFIX = "bert.prefix_tuning.prefix_tunings.{}.{}."
# VeRA's A and B.
SHARED = "bert.shared_parameters.{}.lora_{}"
# Kinds of heads that read every token.
OF_TOKENS = QUESTIONS, TAGGING, MASKED_LM
# Places of tensors that may lack "bert." before them.
OF_BERT = re.compile(
    r"^(?=(?:encoder|invertible_adapters|prefix_tuning|prompt_tuning"
    r"|shared_parameters)\.)"
)


class HubSpec(Spec):
    """A method as this library has it."""

    def tensor(self, variable, adapter, config):
        # The longest end that fits.
        ends = [end for end in TENSORS if variable.endswith(end)]
        end = max(ends, key=len)
        module = module_of(variable.removesuffix(end))
        return TENSORS[end].format(module, name=adapter)

    def shape(self, variable, shape):
        # A bias has a first axis here.
        is_bias = "/biases" in variable
        return shape[1:] if is_bias else super().shape(variable, shape)


def _kept_layers(adapter: Adapter) -> list[int]:
    layers = range(adapter.config.num_hidden_layers)
    left_out = adapter.fields.get("leave_out") or ()
    for layer in left_out:
        if layer not in layers:
            raise UserError(
                f"{adapter.path}: leave_out names the layer "
                f"{str(layer)[:80]}, expected numbers from 0 to {layers[-1]}"
            )
    return [layer for layer in layers if layer not in left_out]


def _size(adapter: Adapter, key: str, whole: int, layer: str = "") -> int:
    """Divides `whole` by the factor at `key`, or by a layer's, as they do."""
    value = factor = adapter.fields.get(key)
    if isinstance(factor, dict):
        factor = factor.get(layer, factor.get("default"))
    try:
        return int(max(1, whole // factor))
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        raise UserError(
            f"{adapter.path}: {key} is {str(value)[:80]}, expected a number "
            "above 0, or one for each layer"
        ) from error


class Bottlenecks(HubSpec):
    """Bottleneck adapters; a scale goes into their second matrix."""

    def fits(self, fields):
        return fields.get("architecture") is None and super().fits(fields)

    def arguments(self, adapter):
        fields, config = adapter.fields, adapter.config
        layers = _kept_layers(adapter)
        sizes = {
            n: _size(adapter, "reduction_factor", config.hidden_size, str(n))
            for n in layers
        }
        sites = [s for s, field in SITE_FIELDS.items() if fields.get(field)]
        if not (layers and sites):
            raise UserError(
                f"{adapter.path}: the adapters are in {len(layers)} layers, at "
                f"{len(sites)} sites; expected layers that leave_out does not "
                "name, and mh_adapter or output_adapter"
            )
        # The size of most layers.
        size = max(sizes.values(), key=list(sizes.values()).count)
        others = {n: other for n, other in sizes.items() if other != size}
        arguments = {
            **super().arguments(adapter),
            "size": size,
            "sizes": base.sizes_text(others),
            "sites": sites[0] if len(sites) == 1 else "both",
        }
        if len(layers) < config.num_hidden_layers:
            arguments["layers"] = ",".join(map(str, layers))
        if self.method is MadX:
            key = "inv_adapter_reduction_factor"
            size = _size(adapter, key, config.embedding_width // 2)
            arguments["inverse_size"] = size
        scaling = fields["scaling"]
        if isinstance(scaling, (int, float)):
            check_number(scaling, f"{adapter.path}: scaling")
        elif scaling not in ("learned", "channel"):
            raise UserError(
                f"{adapter.path}: scaling is {str(scaling)[:80]!r}, expected a "
                "number, learned or channel"
            )
        if self.method is Parallel:
            arguments["scale"] = float(scaling) if _in_method(scaling) else 1.0
        return arguments

    def describe(self, method, config):
        sites = SITES[method.sites]
        left = set(range(config.num_hidden_layers))
        left -= set(base.choose_layers(method.layers, config))
        # The library divides by these and rounds down.
        factors = {"default": config.hidden_size / (method.size + 0.5)}
        for layer, size in base.layer_sizes(method.sizes).items():
            factors[str(layer)] = config.hidden_size / (size + 0.5)
        described = {
            **super().describe(method, config),
            **{field: site in sites for site, field in SITE_FIELDS.items()},
            "reduction_factor": factors if method.sizes else factors["default"],
            "leave_out": sorted(left),
        }
        if self.method is MadX:
            half = config.embedding_width // 2
            factor = half / (method.inverse_size + 0.5)
            described["inv_adapter_reduction_factor"] = factor
        if self.method is Parallel:
            described["scaling"] = method.scale
        return described

    def values(self, adapter, method):
        scaling = adapter.fields["scaling"]
        values = super().values(adapter, method)
        for scope in method.scopes(adapter.config).values():
            if isinstance(scaling, str):
                size = {"learned": 1, "channel": adapter.config.hidden_size}
                name = f"{module_of(scope)}.{adapter.name}.scaling"
                scale = adapter.tensors.take(name, size[scaling])
            elif self.method is Parallel and _in_method(scaling):
                continue
            else:
                scale = np.float32([scaling])
            for name in ("weights2", "biases2"):
                values[f"{scope}/{name}"] = values[f"{scope}/{name}"] * scale
        return values

    def lacks(self, method, config):
        if config.num_hidden_groups and "attention" in SITES[method.sites]:
            # Source: the library's `AlbertAttentionWithAdapters`.
            return (
                "AdapterHub's adapters after the attention of an ALBERT read "
                "the layer's input; expected sites='ffn'"
            )
        return super().lacks(method, config)


def _in_method(scaling: Any) -> bool:
    return isinstance(scaling, (int, float)) and scaling > 0


def _lora_targets(fields: Mapping[str, Any]) -> list[str]:
    letters = fields.get("attn_matrices") or ()
    return [
        target
        for target, (field, letter) in LORA_FIELDS.items()
        if fields.get(field) and (not letter or letter in letters)
    ]


class Loras(HubSpec):
    """LoRA; VeRA too, whose scales are whole matrices there."""

    def to_method(self, adapter):
        fields, rank = adapter.fields, adapter.fields.get("r")
        targets = _lora_targets(fields)
        if fields["use_gating"] and fields.get("leave_out"):
            raise UserError(
                f"{adapter.path}: leave_out and use_gating together are not "
                "read of LoRA; expected one of them"
            )
        # With gates alpha is not used there either.
        alpha = rank if fields["use_gating"] else fields.get("alpha")
        if rank is None or alpha is None:
            raise UserError(
                f"{adapter.path} has no r or no alpha, which scale the updates"
            )
        check_number(alpha, f"{adapter.path}: alpha")
        matrices = list(places(targets, _kept_layers(adapter)))
        return lora_of(
            dict.fromkeys(matrices, rank),
            dict.fromkeys(matrices, float(alpha)),
            adapter.config,
            adapter.path,
            gating=fields["use_gating"],
        )

    def describe(self, method, config):
        targets = method.targets.split(",")
        matrices = method.matrices(config)
        layers = {place_of(scope)[0] for scope in matrices}
        rank, _, scale = next(iter(matrices.values()))
        return {
            **super().describe(method, config),
            **{
                field: any(
                    target in targets
                    for target, (other, _) in LORA_FIELDS.items()
                    if other == field
                )
                for field, _ in LORA_FIELDS.values()
            },
            "attn_matrices": [
                letter
                for target, (_, letter) in LORA_FIELDS.items()
                if letter and target in targets
            ],
            "r": rank,
            "alpha": as_lora_number(scale * rank),
            "leave_out": sorted(set(range(config.num_hidden_layers)) - layers),
        }

    def lacks(self, method, config):
        matrices, targets = method.matrices(config), method.targets.split(",")
        layers = {place_of(scope)[0] for scope in matrices}
        is_even = len(matrices) == len(layers) * len(targets)
        if not set(targets) <= LORA_FIELDS.keys():
            return f"expected LoRA at {', '.join(LORA_FIELDS)}"
        if not is_even or len(set(matrices.values())) > 1:
            return (
                "expected LoRA of one rank and alpha, at the same matrices in "
                "each layer"
            )
        return super().lacks(method, config)

    def values(self, adapter, method):
        fields, take = adapter.fields, adapter.tensors.take
        if not any(
            isinstance(fields.get(k), float) for k in ("vera_d", "vera_b")
        ):
            return super().values(adapter, method)
        down, up = (
            take(SHARED.format(adapter.name, letter), *shape)
            for letter, shape in (
                ("A", (method.rank, None)),
                ("B", (None, method.rank)),
            )
        )
        values = {}
        for variable, declared in method.variables(adapter.config).items():
            name = self.tensor(variable, adapter.name, adapter.config)
            name = name.replace(".lora_A", ".vera_D")
            name = name.replace(".lora_B", ".vera_B")
            shared = down if variable.endswith("lora_a") else up
            product = take(name, len(shared), len(shared)) @ shared
            check_shape(product, declared.shape[::-1], name, adapter.path)
            values[variable] = product.T
        return values


class Ia3Scales(HubSpec):
    """(IA)^3 of keys and values, which are LoRA for this program.

    Its scales of inner values act before the activation, T-Few's after it.
    """

    def values(self, adapter, method):
        fields, values = adapter.fields, unit_scales(adapter.config)
        alpha = 1 if fields.get("alpha") is None else fields["alpha"]
        check_number(alpha, f"{adapter.path}: alpha")
        targets = [t for t in _lora_targets(fields) if t in ("key", "value")]
        for place in places(targets, _kept_layers(adapter)):
            scope = scope_of(place)
            name = self.tensor(f"{scope}/lora_b", adapter.name, adapter.config)
            scale = adapter.tensors.take(name, adapter.config.hidden_size, 1)
            values[f"{scope}/ia3_scale"] = scale[:, 0] * np.float32(alpha)
        return values


class Prefixes(HubSpec):
    """Prefixes, which this library may keep as the network that makes them."""

    def describe(self, method, config):
        described = {**super().describe(method, config), "flat": True}
        del described["non_linearity"]
        if not method.gating:
            del described["shared_gating"]
        return described

    def values(self, adapter, method):
        fields, config = adapter.fields, adapter.config
        layers, hidden = config.num_hidden_layers, config.hidden_size
        length, width = method.length, 2 * layers * hidden

        def take(end: str, *shape: int) -> np.ndarray:
            return adapter.tensors.take(
                _prefix(adapter.name, config) + end, *shape
            )

        names = prefix_variables(layers)
        if fields.get("flat"):
            rows = take("control_trans", length * width).reshape(length, width)
            values = dict(zip(names, np.split(rows, 2 * layers, axis=1)))
        else:
            words = take("wte.weight", length, hidden)
            size = fields.get("bottleneck_size")
            inner = take("control_trans.0.weight", size, hidden)
            network = (
                words,
                inner.T,
                take("control_trans.0.bias", len(inner)),
                take("control_trans.2.weight", width, len(inner)).T,
                take("control_trans.2.bias", width),
            )
            values = prefixes(dict(zip(NETWORK, network)), layers, np)
        gates = method.variables(config)
        gates = {name: gates[name] for name in gates if name not in names}
        return {**values, **self.take(adapter, gates)}

    def tensors(self, exported, method):
        names = prefix_variables(exported.config.num_hidden_layers)
        table = np.concatenate(list(map(exported.read, names)), axis=1)
        scope = _prefix(exported.name, exported.config)
        gates = [n for n in method.variables(exported.config) if n not in names]
        return {
            f"{scope}control_trans": table.ravel(),
            **self.give(exported, gates),
        }


def _prefix(name: str, config: BertConfig) -> str:
    return PREFIX.format(name, ARCHITECTURES[config.model_type].prefixes)


class Prompts(HubSpec):
    """Virtual tokens, whose order is of no matter but to heads."""

    def lacks(self, method, config):
        if config.embedding_size:
            # Source: the library's `PromptTuningLayer`.
            return (
                "AdapterHub's prompts go through the model's projection of "
                "embeddings, this project's stand after it; expected another "
                "method, as prefix"
            )
        return super().lacks(method, config)


class Refts(HubSpec):
    """LoReFT and NoReFT.

    The library trains an orthonormal basis as PyTorch's parametrization has it:
    `base @ reflections`, with a fixed matrix `base`. Here bases are kept as
    they are, and are written without a parametrization, as NoReFT's bases.
    DiReFT is NoReFT of `W + R`, if there is no activation; the library's files
    have no place for DiReFT itself.
    """

    def arguments(self, adapter):
        layers = adapter.fields.get("layers")
        # An ALBERT has one layer for the library.
        if layers == list(range(adapter.config.num_hidden_layers)):
            layers = ALL_LAYERS
        if layers != ALL_LAYERS:
            layers = layers if isinstance(layers, list) else ()
            layers = ",".join(map(str, layers))
        if not adapter.fields.get("orthogonality"):
            logging.warning(
                "%s is read as NoReFT; if it was trained as DiReFT, it "
                "computes something else now, here as in AdapterHub's library, "
                "whose files do not tell the two apart",
                adapter.path,
            )
        return {**super().arguments(adapter), "layers": layers}

    def describe(self, method, config):
        layers = method.layers
        if layers != ALL_LAYERS:
            layers = base.choose_layers(layers, config)
        return {**super().describe(method, config), "layers": layers}

    def lacks(self, method, config):
        if not method.subtract and method.nonlinearity != "linear":
            return (
                "AdapterHub's library reads all adapters of ReFT as if "
                "subtract were True"
            )
        return super().lacks(method, config)

    def values(self, adapter, method):
        if adapter.fields.get("orthogonality"):
            self._make_bases(adapter, method)
        # Units of nothing are there, too.
        values = super().values(adapter, _of_both_sides(method))
        return {name: values[name] for name in method.variables(adapter.config)}

    def _make_bases(self, adapter: Adapter, method: LoReft) -> None:
        size = adapter.config.hidden_size
        for variable in _of_both_sides(method).variables(adapter.config):
            if variable.endswith(PROJECTION):
                name = self.tensor(variable, adapter.name, adapter.config)
                module, _, _ = name.rpartition(".")
                place = f"{module}.parametrizations.weight"
                original = adapter.tensors.take(
                    f"{place}.original", method.rank, size
                ).T
                fixed = adapter.tensors.take(f"{place}.0.base", size, size)
                # As PyTorch: signs, which are whole numbers.
                signs = np.trunc(np.diagonal(original))
                basis = fixed @ (reflected(original, np) * signs)
                adapter.tensors.put(name, basis.T)

    def tensors(self, exported, method):
        held, shapes = method.variables(exported.config), {}
        whole = _of_both_sides(method).variables(exported.config)
        shapes = {name: one.shape for name, one in whole.items()}

        def read(name: str) -> np.ndarray:
            if name not in held:
                return np.zeros(shapes[name], np.float32)
            value = exported.read(name)
            if name.endswith(SOURCE) and not method.subtract:
                scope = name.removesuffix(SOURCE)
                value = value + exported.read(scope + PROJECTION)
            return value

        return self.give(dataclasses.replace(exported, read=read), whole)


def _of_both_sides(method: LoReft) -> LoReft:
    if method.tied:
        return method
    return dataclasses.replace(
        method, prefix=method.prefix or 1, suffix=method.suffix or 1
    )


BOTTLENECK: dict[str, Any] = {
    "fields": {
        "use_gating": Field("gating"),
        "non_linearity": Field(
            "nonlinearity", ACTIVATIONS, FOREIGN_ACTIVATIONS
        ),
    },
    "defaults": {
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
        "dropout": 0.0,
        "init_weights": "bert",
    },
    # `adapter_residual_before_ln` acts with `ln_after` alone, `cross_adapter`
    # in decoders, and the second half with `phm_layer`.
    "others": "architecture mh_adapter output_adapter reduction_factor "
    "leave_out inv_adapter_reduction_factor cross_adapter stochastic_depth "
    "init_weights_seed phm_dim phm_rank phm_bias phm_c_init phm_init_range "
    "learn_phm shared_phm_rule factorized_phm_rule shared_W_phm "
    "factorized_phm_W hypercomplex_nonlinearity",
    "refused": {
        "original_ln_after": "no LayerNorm after the adapter",
        "ln_before": "a LayerNorm in the adapter",
        "ln_after": "a LayerNorm in the adapter",
        "phm_layer": "Compacter's products",
        "invertible_adapter": "invertible adapters that are named so",
    },
}
SERIAL = {"is_parallel": False, "inv_adapter": None}
AFTER_SUM = {"original_ln_before": True, "residual_before_ln": True}
LORA = (
    "alpha selfattn_lora attn_matrices intermediate_lora output_lora "
    "leave_out r init_weights_seed dtype vera_d vera_b"
)
LORA_REFUSED = {"use_dora": "a DoRA that scales BERT's biases too"}
HOULSBY = {"layer_norms": False, "depth": 1, "layer_norm": False}
# An adapter is read by the first that fits, and written by that of its method.
SPECS = [
    Bottlenecks(Parallel, {**SERIAL, "is_parallel": True}, **BOTTLENECK),
    Bottlenecks(Pfeiffer, {**SERIAL, **AFTER_SUM}, **BOTTLENECK),
    Bottlenecks(
        MadX, {**SERIAL, **AFTER_SUM, "inv_adapter": "nice"}, **BOTTLENECK
    ),
    *(
        Bottlenecks(
            Houlsby,
            {
                **SERIAL,
                "original_ln_before": False,
                "residual_before_ln": before,
            },
            fixed=HOULSBY,
            is_written=before,
            **BOTTLENECK,
        )
        for before in (True, False)
    ),
    Loras(
        Lora,
        {"architecture": "lora", "composition_mode": "add"},
        {
            "use_gating": Field("gating"),
            "dropout": Field("dropout", matters=False),
        },
        {
            "composition_mode": "add",
            "use_gating": False,
            "init_weights": "lora",
        },
        LORA,
        LORA_REFUSED,
    ),
    Ia3Scales(
        Ia3,
        {
            "architecture": "lora",
            "composition_mode": "scale",
            "r": 1,
            "intermediate_lora": False,
            "output_lora": False,
        },
        defaults={"intermediate_lora": False, "output_lora": False},
        others=f"dropout init_weights use_gating {LORA}",
        refused=LORA_REFUSED,
        is_written=False,
    ),
    Prefixes(
        Prefix,
        {"architecture": "prefix_tuning", "non_linearity": "tanh"},
        {
            "prefix_length": Field("length"),
            "use_gating": Field("gating"),
            "shared_gating": Field("shared_gating"),
        },
        # Two of them act in decoders alone.
        {
            "non_linearity": "tanh",
            "shared_gating": True,
            "encoder_prefix": True,
            "cross_prefix": True,
            "use_gating": False,
            "dropout": 0.0,
            "leave_out": [],
        },
        "flat bottleneck_size init_weights_seed",
        {"leave_out": "a prefix without some layers"},
        {"reparameterize": False},
    ),
    Prompts(
        Prompt,
        {"architecture": "prompt_tuning"},
        {
            "prompt_length": Field("length"),
            "combine": Field(
                "heads_read",
                COMBINED,
                {read: combine for combine, read in COMBINED.items()},
            ),
        },
        {"combine": "prefix", "prompt_init": "random_uniform"},
        "prompt_init_text random_uniform_scale init_weights_seed",
        is_transposed=False,
    ),
    Refts(
        LoReft,
        {"architecture": "reft", "output_reft": True},
        {
            "r": Field("rank"),
            "prefix_positions": Field("prefix"),
            "suffix_positions": Field("suffix"),
            "tied_weights": Field("tied"),
            "non_linearity": Field(
                "nonlinearity",
                {None: "linear", **ACTIVATIONS},
                {**FOREIGN_ACTIVATIONS, "linear": None},
            ),
            "dropout": Field("dropout", matters=False),
        },
        {
            "output_reft": True,
            "tied_weights": False,
            "orthogonality": False,
            "dtype": None,
        },
        "layers init_weights_seed",
        fixed={"orthogonal": False},
    ),
]


def read(
    path: str, config: BertConfig, options: HeadOptions
) -> tuple[TuningMethod, Arrays, Head, dict[str, Any]]:
    """Reads an adapter of `save_adapter`, as `foreign_adapters` wants it.

    A language's adapter may be without a head; then BERT's own is meant.
    """
    described = files.read_object(path, "AdapterHub's description", CONFIG)
    kind, size = described["model_type"], described["hidden_size"]
    if not is_of(kind, config) or size != config.hidden_size:
        raise UserError(
            f"{path} is of a {kind[:80]} with hidden size {str(size)[:80]}, "
            f"expected a {config.model_type} with {config.hidden_size}"
        )
    fields, name = _as_of_now(described), described["name"]
    foreign_fields.check(
        described, adapterhub_heads.FILE_FIELDS, path, is_open=True
    )
    folder = os.path.dirname(path)
    tensors = Tensors(folder, WEIGHTS_FILE, TORCH_FILE)
    tensors.rename(
        lambda tensor: OF_BERT.sub("bert.", as_bert(tensor, config.model_type))
    )
    # Copies: a prefix is in the model once, and in each layer.
    copies = f".prefix_tuning.pool.prefix_tunings.{name}."
    tensors.drop([tensor for tensor in tensors.names if copies in tensor])
    is_union = fields.get("architecture") == UNION
    if is_union:
        foreign_fields.check(fields, UNION_FIELDS, path)
    methods, values = [], {}
    configs = fields.get("configs") if is_union else None
    for one in configs or [fields]:
        method, added = specs.read(
            specs.choose(SPECS, one, path),
            Adapter(one, tensors, config, path, name),
        )
        methods.append(method)
        values.update(added)
    tensors.check_all_taken()
    clash = _clash(methods)
    if clash:
        raise UserError(f"{path}: {clash}")
    head = Head(MASKED_LM, usual_shape(MASKED_LM))
    is_language = [type(method) for method in methods] == [MadX]
    if adapterhub_heads.is_in(folder) or not is_language:
        head = adapterhub_heads.read(folder, config, options)
    if head.kind in OF_TOKENS:
        methods = [
            dataclasses.replace(method, heads_read=CLS)
            if isinstance(method, Prompt)
            else method
            for method in methods
        ]
    method = methods[0]
    if is_union:
        method = Union(tuple(Part("", one) for one in methods))
    origin = {"version": described.get("version"), "name": name}
    return method, values, head, origin


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


def _methods(exported: Exported) -> list[TuningMethod]:
    method = exported.method
    if isinstance(method, AdapterDrop):
        method = method.kept(exported.config)
    if isinstance(method, Union):
        return [part.method for part in method.parts]
    return [method]


def lack(exported: Exported) -> str:
    """Says why an adapter is not written for this library, or ""."""
    model = exported.config.model_type
    if not ARCHITECTURES[model].in_adapterhub:
        return f"AdapterHub's library has no models of the type {model}"
    methods = _methods(exported)
    kind = exported.head.kind if exported.head else ""
    for method in methods:
        reason = specs.lack(SPECS, method, exported.config)
        if reason:
            return reason
        if kind == CHOICE and (
            isinstance(method, (LoReft, Prompt))
            or isinstance(method, Prefix)
            and method.gating
        ):
            return (
                f"AdapterHub's library fails at {method} with a head of "
                f"{kind}, or lets the padding of such rows change the answer"
            )
        if isinstance(method, Prompt) and (
            kind in OF_TOKENS and method.heads_read == VIRTUAL
        ):
            return (
                f"{method} puts a virtual token into the place of [CLS], which "
                f"AdapterHub's heads of {kind} have next to it"
            )
    if exported.head is None:
        return _clash(methods)
    return _clash(methods) or adapterhub_heads.lack(
        exported.head, exported.config
    )


def _clash(methods: Sequence[TuningMethod]) -> str:
    kinds = [type(method) for method in methods]
    if Prompt in kinds and LoReft in kinds:
        return (
            "AdapterHub's library counts virtual tokens among the first of a "
            "text, which ReFT moves; expected a union without one of them"
        )
    for kind in kinds:
        if kinds.count(kind) > 1 and not issubclass(kind, BottleneckMethod):
            return (
                f"two parts of a union are {kind.name}, of which AdapterHub's "
                "library has one"
            )
    return ""


def write(exported: Exported) -> dict[str, Any]:
    """Returns the contents of an adapter's files, by name."""
    configs, tensors = [], {}
    for method in _methods(exported):
        spec = specs.find(SPECS, method)
        configs.append(spec.describe(method, exported.config))
        tensors.update(spec.tensors(exported, method))
    is_union = isinstance(exported.method, Union)
    union = {"architecture": UNION, "configs": configs}
    config, kind = exported.config, exported.config.model_type
    described = {
        "hidden_size": config.hidden_size,
        "model_class": adapterhub_heads.flexible(config)[0],
        "model_name": exported.base_name,
        "model_type": kind,
        "name": exported.name,
        "version": VERSION,
    }
    contents = {
        WEIGHTS_FILE: {from_bert(k, kind): v for k, v in tensors.items()},
        CONFIG_FILE: {"config": union if is_union else configs[0], **described},
    }
    if exported.head is not None:
        head, more, tensors = adapterhub_heads.write(
            exported.head, exported.name, config
        )
        contents[adapterhub_heads.WEIGHTS_FILE] = tensors
        contents[adapterhub_heads.CONFIG_FILE] = {
            "config": head,
            **more,
            **described,
        }
    return contents
