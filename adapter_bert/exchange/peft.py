"""Hugging Face's peft 0.21: the LoRA family, trained LayerNorms, and (IA)^3.

(IA)^3 is read if it is the same function.

peft keeps no labels: they are named as transformers names them, or as a config
of transformers' says that lies in the folder.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.encoder import BertConfig, list_variables
from adapter_bert.checkpoints import sentence_transformers
from adapter_bert.checkpoints.foreign_tensors import Tensors
from adapter_bert.checkpoints.hugging_face import (
    hugging_face_name,
    kind_of_head,
)
from adapter_bert.checkpoints.hugging_face_heads import describe_head
from adapter_bert.errors import UserError
from adapter_bert.exchange import foreign_heads, peft_modules, peft_words, specs
from adapter_bert.exchange.foreign_base import (
    Exported,
    Head,
    as_lora_number,
    check_number,
    lora_of,
    unit_scales,
    usual_shape,
)
from adapter_bert.exchange.foreign_heads import HeadOptions
from adapter_bert.exchange.peft_modules import ROOT, their_module
from adapter_bert.exchange.specs import Adapter, Arrays, Field, Spec
from adapter_bert.methods.base import ALL_LAYERS, TuningMethod
from adapter_bert.methods.dora import Dora
from adapter_bert.methods.fine_tuning import LayerNormOnly
from adapter_bert.methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from adapter_bert.methods.lora import (
    NAMES,
    OF_POOLER,
    Lora,
    Matrix,
    places,
    scope_of,
)
from adapter_bert.methods.new_words import (
    NEW_WORDS,
    with_new_words,
    without_new_words,
)
from adapter_bert.methods.vera import Vera
from adapter_bert.tasks.kinds import (
    CHOICE,
    MASKED_LM,
    QUESTIONS,
    TAGGING,
    VECTORS,
)

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
    "init_r?": int,
    "projection_prng_key?": int,
    "modules_to_save?": list,
    "auto_mapping?": dict,
    "auto_mapping?.base_model_class?": str,
    "peft_version?": str,
}
# The adapter's own name within names of a state_dict.
ADAPTER_NAME = re.compile(
    r"(\.lora_[AB])\.[^.]+(?=\.weight$)"
    r"|(\.lora_magnitude_vector)\.[^.]+\.weight$"
    r"|(\.(?:lora_[ABE]|ia3_l|vera_lambda_[bd]|vera_[AB]"
    r"|trainable_tokens_delta))\.(?!weight$)[^.]+$"
    r"|(\.ln_tuning_layers\.)[^.]+\.(?=\w+$)"
    r"|\.modules_to_save\.[^.]+(?=\.)"
    # Of modules that are compiled, or on several devices.
    r"|(?<![^.])_orig_mod\.|^module\."
)
SEQUENCES = "SEQ_CLS"
# The type of a task of vectors. In the names of tensors of its adapters
# nothing stands before the modules of BERT.
FEATURES = "FEATURE_EXTRACTION"
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
    "problem_type?": str,
    f"{foreign_heads.THRESHOLD}?": float,
}
LAYER_NORM = "/LayerNorm/"
# Between a LayerNorm's module and its values.
LAYER_NORM_MARK = ".ln_tuning_layers."
# End of a variable -> tensor, in a module whose name is behind `ROOT`.
TENSORS = {
    "lora_a": "lora_A.weight",
    "lora_b": "lora_B.weight",
    "dora_m": "lora_magnitude_vector",
    "vera_d": "vera_lambda_d",
    "vera_b": "vera_lambda_b",
    "ia3_scale": "ia3_l",
}
# VeRA's A and B in peft's file, transposed.
SHARED = ("base_model.vera_A", "base_model.vera_B")
# Initializations that leave BERT's matrices as they are; from others, as
# `pissa`, peft takes what the update began with.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal")
# peft adds it to the rank that it divides by, in AdaLoRA.
SMALL = 1e-5


class PeftSpec(Spec):
    """A method as peft has it, at the matrices that `target_modules` names."""

    def tensor(self, variable, adapter, config):
        scope, _, end = variable.rpartition("/")
        return f"{ROOT}{their_module(scope, config)}.{TENSORS[end]}"

    def describe(self, method, config):
        described = super().describe(method, config)
        # What is off is left out.
        return {k: v for k, v in described.items() if v is not False}


class Loras(PeftSpec):
    """LoRA, rsLoRA and DoRA."""

    def to_method(self, adapter):
        _check_beginning(adapter)
        arguments = self.arguments(adapter)
        matrices = peft_modules.targets(adapter)
        ranks, alphas = (
            peft_modules.by_pattern(
                adapter, f"{name}_pattern", arguments.pop(name), matrices
            )
            for name in ("rank", "alpha")
        )
        for alpha in alphas.values():
            check_number(alpha, f"{adapter.path}: lora_alpha")
        return lora_of(
            ranks,
            {place: float(alpha) for place, alpha in alphas.items()},
            adapter.config,
            adapter.path,
            self.method,
            **arguments,
        )

    def describe(self, method, config):
        matrices = method.matrices(config)
        of_module = {
            peft_modules.ending_of(scope, config): matrix
            for scope, matrix in matrices.items()
        }
        return {
            **super().describe(method, config),
            "lora_alpha": as_lora_number(method.alpha),
            "target_modules": peft_modules.modules_of(matrices, config),
            **_pattern("rank", method.rank, of_module),
            **_pattern("alpha", method.alpha, of_module),
        }


def _pattern(
    name: str, usual: Any, of_module: Mapping[str, Matrix]
) -> dict[str, Any]:
    others = {
        module: as_lora_number(getattr(matrix, name))
        for module, matrix in of_module.items()
        if getattr(matrix, name) != usual
    }
    return {f"{name}_pattern": others} if others else {}


def _check_beginning(adapter: Adapter) -> None:
    begun = adapter.fields.get("init_lora_weights")
    if begun not in BEGINNINGS:
        raise UserError(
            f"{adapter.path}: init_lora_weights is {begun!r:.80}, with which "
            "peft changes BERT's own matrices too; there model.merge_and_"
            "unload().save_pretrained(FOLDER) writes the whole model with its "
            "head; pass FOLDER as --init_checkpoint"
        )


class AdaLoras(PeftSpec):
    """AdaLoRA, as LoRA: the singular values go into B.

    peft scales by alpha / (first rank + 1e-5), whatever rank is left.
    """

    def to_method(self, adapter):
        _check_beginning(adapter)
        arguments, ranks = self.arguments(adapter), {}
        kept = adapter.fields.get("rank_pattern", {})
        for place, module in peft_modules.targets(adapter).items():
            rank = kept.get(f"{module}.lora_E", arguments["rank"])
            ranks[place] = rank.count(True) if isinstance(rank, list) else rank
        for key in ("lora_alpha", "init_r"):
            check_number(adapter.fields[key], f"{adapter.path}: {key}")
        alphas = dict.fromkeys(ranks, float(arguments["alpha"]))
        return lora_of(ranks, alphas, adapter.config, adapter.path)

    def values(self, adapter, method):
        take, first, values = adapter.tensors.take, adapter.fields["init_r"], {}
        matrices = method.matrices(adapter.config)
        for place, module in peft_modules.targets(adapter).items():
            scope = scope_of(place)
            rank = matrices[scope].rank if scope in matrices else 0
            down = take(f"{ROOT}{module}.lora_A", rank, None)
            singular = take(f"{ROOT}{module}.lora_E", rank, 1)
            up = take(f"{ROOT}{module}.lora_B", None, rank)
            if rank:
                scale = np.float32(rank / (first + SMALL))
                values[f"{scope}/lora_a"] = down.T
                values[f"{scope}/lora_b"] = up.T * singular * scale
        return values


class Veras(PeftSpec):
    """VeRA, whose random matrices have to be those of its seed."""

    def arguments(self, adapter):
        matrices = peft_modules.targets(adapter)
        layers = sorted({layer for layer, _ in matrices} - {OF_POOLER[0]})
        targets = [t for t in NAMES if any(t == name for _, name in matrices)]
        if list(matrices) != list(places(targets, layers)):
            raise UserError(
                f"{adapter.path}: VeRA is at other matrices in some layers "
                "than in others, which no method of this project is"
            )
        is_all = len(layers) in (0, adapter.config.num_hidden_layers)
        return {
            **super().arguments(adapter),
            "targets": ",".join(targets),
            "layers": ALL_LAYERS if is_all else ",".join(map(str, layers)),
        }

    def describe(self, method, config):
        modules = peft_modules.modules_of(method.kernels(config), config)
        return {**super().describe(method, config), "target_modules": modules}

    def values(self, adapter, method):
        values = super().values(adapter, method)
        for name, drawn in zip(SHARED, method.matrices(adapter.config)):
            if adapter.fields["save_projection"] and not np.allclose(
                adapter.tensors.take(name, *drawn.T.shape), drawn.T, atol=1e-6
            ):
                raise UserError(
                    f"{adapter.path}: {name} is not the random matrix that "
                    f"peft draws for projection_prng_key={method.seed}, so no "
                    "method of this project computes it"
                )
        return values

    def tensors(self, exported, method):
        matrices = (matrix.T for matrix in method.matrices(exported.config))
        shared = dict(zip(SHARED, matrices))
        return {**super().tensors(exported, method), **shared}


class Ia3Scales(PeftSpec):
    """(IA)^3 of keys, of values and of the last matrix's inputs."""

    def shape(self, variable, shape):
        # Of a module's outputs, or of its inputs.
        scope, _, _ = variable.rpartition("/")
        return (*shape, 1) if scope.endswith(KEY_VALUE) else (1, *shape)

    def describe(self, method, config):
        scopes = [
            v.removesuffix("/ia3_scale") for v in method.variables(config)
        ]
        outputs = [scope for scope in scopes if scope.endswith(OUTPUT)]
        return {
            **super().describe(method, config),
            "target_modules": peft_modules.modules_of(scopes, config),
            "feedforward_modules": peft_modules.modules_of(outputs, config),
        }

    def values(self, adapter, method):
        declared, scaled = method.variables(adapter.config), {}
        for place, module in peft_modules.targets(adapter).items():
            variable = f"{scope_of(place)}/ia3_scale"
            if variable not in declared:
                raise UserError(
                    f"{adapter.path}: (IA)^3 scales {module} too, which this "
                    "project's does not; peft's default does for BERT, since "
                    "'output.dense' is also in attention.output.dense; "
                    "expected target_modules="
                    r"'.*(key|value|layer\.\d+\.output\.dense)'"
                )
            scaled[variable] = declared[variable]
        return {**unit_scales(adapter.config), **self.take(adapter, scaled)}


class LayerNorms(PeftSpec):
    """Trained LayerNorms; those that are left out are the BERT's."""

    def describe(self, method, config):
        # An ending could be of the LayerNorm of a head, too.
        names = (_layer_norm(n, config) for n in list_variables(config))
        modules = {name.partition(LAYER_NORM_MARK)[0] for name in names if name}
        return {
            **super().describe(method, config),
            "target_modules": sorted(modules),
        }

    def values(self, adapter, method):
        shapes, values = list_variables(adapter.config), {}
        for variable, shape in shapes.items():
            name = f"{ROOT}{_layer_norm(variable, adapter.config)}"
            if name in adapter.tensors.names:
                values[variable] = adapter.tensors.take(name, *shape)
        if not values:
            raise UserError(
                f"{adapter.path}: {adapter.tensors.path} holds no LayerNorm of "
                "this BERT; is it of another model?"
            )
        return values

    def tensors(self, exported, method):
        named = {
            variable: _layer_norm(variable, exported.config)
            for variable in list_variables(exported.config)
        }
        return {
            f"{ROOT}{name}": exported.read(variable)
            for variable, name in named.items()
            if name
        }


def _layer_norm(variable: str, config: BertConfig) -> str:
    if LAYER_NORM not in variable:
        return ""
    name, _ = hugging_face_name(variable, config.model_type)
    module, _, end = name.rpartition(".")
    return f"{module}{LAYER_NORM_MARK}{end}"


OTHERS = (
    "task_type target_modules exclude_modules modules_to_save peft_version "
    "auto_mapping base_model_name_or_path revision inference_mode"
)
REFUSED = {"fan_in_fan_out": "transposed matrices"}
OF_LORA = f"""{OTHERS} r rank_pattern layers_to_transform layers_pattern
    alpha_pattern init_lora_weights lora_dropout megatron_core loftq_config
    eva_config corda_config lora_ga_config qalora_group_size
    ensure_weight_tying runtime_config merge_weights trainable_token_indices"""
LORA_REFUSED = {
    **REFUSED,
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "lora_bias": "biases of updates",
    "layer_replication": "replicated layers",
    "target_parameters": "updates of bare parameters",
    "megatron_config": "Megatron's layers",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow's routing",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "enable_lora": "updates of parts of a matrix",
}
# BERT's own biases are not trained.
BIAS = {"bias": "none"}
QUERY_VALUE = {"target_modules": ["query", "value"]}
SPECS = [
    *(
        Loras(
            method,
            {"peft_type": "LORA", "use_dora": method is Dora, **BIAS},
            {
                "r": Field("rank"),
                "lora_alpha": Field("alpha"),
                "use_rslora": Field("rs"),
                "lora_dropout": Field("dropout", matters=False),
            },
            {"use_dora": False, "use_rslora": False, **BIAS, **QUERY_VALUE},
            OF_LORA,
            LORA_REFUSED,
            {"gating": False},
        )
        for method in (Lora, Dora)
    ),
    AdaLoras(
        Lora,
        {"peft_type": "ADALORA", **BIAS},
        {"init_r": Field("rank"), "lora_alpha": Field("alpha")},
        {**BIAS, **QUERY_VALUE},
        f"{OF_LORA} target_r tinit tfinal deltaT beta1 beta2 orth_reg_weight "
        "total_step",
        {
            **LORA_REFUSED,
            "use_dora": "DoRA",
            "use_rslora": "AdaLoRA with rsLoRA's scale",
            "alpha_pattern": "AdaLoRA with several alphas",
        },
        is_written=False,
    ),
    Veras(
        Vera,
        {"peft_type": "VERA", **BIAS},
        {
            "r": Field("rank"),
            "projection_prng_key": Field("seed"),
            "vera_dropout": Field("dropout", matters=False),
            "d_initial": Field("d_initial", matters=False),
        },
        {"save_projection": True, **BIAS, **QUERY_VALUE},
        f"{OTHERS} init_weights layers_to_transform layers_pattern",
        REFUSED,
    ),
    Ia3Scales(
        Ia3,
        {"peft_type": "IA3"},
        defaults={"target_modules": ["key", "value", "output.dense"]},
        others=f"{OTHERS} feedforward_modules init_ia3_weights",
        refused=REFUSED,
    ),
    LayerNorms(
        LayerNormOnly,
        {"peft_type": "LN_TUNING"},
        others=OTHERS,
        refused=REFUSED,
    ),
]


def read(
    path: str, config: BertConfig, options: HeadOptions
) -> tuple[TuningMethod, Arrays, Head, dict[str, Any]]:
    """Reads an adapter of `save_pretrained`, as `foreign_adapters` wants it."""
    described = files.read_object(path, "peft's description", CONFIG)
    spec = specs.choose(SPECS, described, path)
    folder = os.path.dirname(path)
    tensors = Tensors(folder, WEIGHTS_FILE, TORCH_FILE)
    # Names of a state_dict become those of a saved adapter.
    tensors.rename(
        lambda name: ADAPTER_NAME.sub(lambda m: "".join(m.groups("")), name)
    )
    if sentence_transformers.is_folder(folder):
        root = f"{ROOT}{ARCHITECTURES[config.model_type].prefix}"
        tensors.rename(
            lambda name: (
                name if name.startswith(root) else name.replace(ROOT, root, 1)
            )
        )
    adapter = Adapter(described, tensors, config, path)
    head = _read_head(adapter, options)
    method, values = specs.read(spec, adapter)
    rows, words = peft_words.read(adapter)
    if rows is not None:
        method = with_new_words(method, len(rows))
        values = {**values, NEW_WORDS: rows}
        head = dataclasses.replace(head, words=words)
    tensors.check_all_taken()
    return method, values, head, {"version": described.get("peft_version")}


def _read_head(adapter: Adapter, options: HeadOptions) -> Head:
    """Reads the head, which peft trains next to the adapter.

    Its kind is that of the class of the model, which peft writes for a task of
    no type, or which a config in the folder names.
    """
    described, tensors, config, path, _ = adapter
    folder = os.path.dirname(path)
    if sentence_transformers.is_folder(folder):
        _, pooled = sentence_transformers.read(folder)
        sentence_transformers.check_width(folder, pooled, config.hidden_size)
        return Head(VECTORS, usual_shape(VECTORS), pooled=pooled)
    place = os.path.join(folder, MODEL_CONFIG_FILE)
    model = files.read_optional(place, "a model's config", MODEL_CONFIG)
    kind = _kind_of_head(adapter, model)
    # transformers may leave another `label2id` as it was.
    model["label2id"] = None
    if model.get("id2label"):
        named = model["id2label"].items()
        model["label2id"] = {label: number for number, label in named}
    if kind == MASKED_LM:
        return foreign_heads.read_masked_lm(tensors, config, path, ROOT)
    for module in foreign_heads.modules_of(kind, config):
        name = f"{ROOT}{module}"
        if f"{name}.weight" not in tensors.names:
            raise UserError(
                f"{tensors.path} holds no head ({name} is missing), so it "
                "answers nothing; save it with modules_to_save"
            )
    return foreign_heads.read_dense(
        kind, tensors, config, model, options, path, ROOT
    )


def _kind_of_tensors(adapter: Adapter) -> Optional[str]:
    """Finds the kind of head in a file of transformers' own `add_adapter`."""
    # Heads of texts and of tags may have the same tensors.
    for kind in (QUESTIONS, MASKED_LM, foreign_heads.ANY_OF_TEXTS, TAGGING):
        module = foreign_heads.modules_of(kind, adapter.config)[-1]
        if any(n.startswith(f"{ROOT}{module}.") for n in adapter.tensors.names):
            if kind == foreign_heads.ANY_OF_TEXTS:
                logging.warning(
                    "%s has no task_type: its head is taken for one of texts; "
                    "if it is another, put the model's config.json (with "
                    "architectures) next to it",
                    adapter.path,
                )
            return kind
    return None


def _kind_of_head(adapter: Adapter, model: Mapping[str, Any]) -> str:
    described, _, config, path, _ = adapter
    task = described.get("task_type")
    mapping = described.get("auto_mapping") or {}
    classes = foreign_heads.classes(config)
    of_class = classes.get(mapping.get("base_model_class"))
    kind = TASKS.get(task, of_class)
    in_config = kind_of_head(model)
    if kind is None and not task and not in_config:
        kind = _kind_of_tensors(adapter)
    if kind == foreign_heads.ANY_OF_TEXTS and not in_config:
        # The class may be that of the base, before it got its head.
        kind = foreign_heads.PROBLEMS.get(model.get("problem_type"), kind)
    if kind is not None and in_config in (MASKED_LM, "pretraining"):
        # What the base was, before it got its head.
        in_config = ""
    if kind is None and not task:
        kind = in_config or None
    if kind is None:
        raise UserError(
            f"{path}: task_type is {task!r:.80}, and auto_mapping names no "
            f"class of BERT's with a head; expected {' or '.join(TASKS)}; an "
            "adapter without its task's head answers nothing"
        )
    if in_config and in_config != kind:
        if kind != foreign_heads.ANY_OF_TEXTS or (
            in_config not in foreign_heads.OF_TEXTS
        ):
            raise UserError(
                f"{path} is of {kind or 'texts'}, but {MODEL_CONFIG_FILE} "
                f"next to it of {in_config}; delete the wrong one"
            )
        kind = in_config
    return kind


def lack(exported: Exported) -> str:
    """Says why an adapter is not written for peft, or ""."""
    method, head = without_new_words(exported.method), exported.head
    reason = specs.lack(SPECS, method, exported.config)
    if reason:
        return reason
    if exported.new_tokens and (
        not isinstance(method, Lora) or head.kind == VECTORS
    ):
        return (
            f"it has new words next to {method.name} with a head of "
            f"{head.kind}; expected lora or dora with a head that answers"
        )
    if head.shape not in (
        usual_shape(head.kind),
        usual_shape(head.kind).fitted_to(_head_config(exported)),
    ):
        return f"its head has another form than peft's, {head.shape}"
    if (
        head.kind == MASKED_LM
        and exported.config.tie_word_embeddings
        and head.words is None
    ):
        return (
            "peft keeps BERT's word embeddings with a head of masked words; "
            "pass the BERT as --init_checkpoint"
        )
    return ""


def _head_config(exported: Exported) -> BertConfig:
    config = foreign_heads.with_pooler(exported.config)
    return config.for_choices if exported.head.kind == CHOICE else config


def write(exported: Exported) -> dict[str, Any]:
    """Returns the contents of an adapter's files, by name."""
    method, head = without_new_words(exported.method), exported.head
    config, kind = exported.config, exported.config.model_type
    prefix = ARCHITECTURES[kind].prefix
    spec = specs.find(SPECS, method)
    tensors = spec.tensors(exported, method)
    described = {
        "base_model_name_or_path": exported.base_name,
        "inference_mode": True,
        # No field of LayerNorms.
        **({} if method == LayerNormOnly() else {"fan_in_fan_out": False}),
        **spec.describe(method, config),
    }
    if head.kind == VECTORS:
        return {
            WEIGHTS_FILE: {
                name.replace(f"{ROOT}{prefix}", ROOT): value
                for name, value in tensors.items()
            },
            CONFIG_FILE: {**described, "task_type": FEATURES},
            # Without it transformers guess the model from the path's words.
            MODEL_CONFIG_FILE: {"model_type": kind},
            **sentence_transformers.describe(head.pooled, config.hidden_size),
            **exported.tokenizer,
        }
    contents: dict[str, Any] = {}
    if exported.new_tokens:
        more, contents = peft_words.describe(exported.new_tokens, config)
        described.update(more)
        tensors.update(peft_words.tensors_of(exported))
    if head.kind == MASKED_LM:
        saved = foreign_heads.modules_of(head.kind, config)
        named = foreign_heads.masked_lm_tensors(head, config)
        if config.tie_word_embeddings:
            named[foreign_heads.decoder(config)] = head.words
        tensors.update({f"{ROOT}{name}": one for name, one in named.items()})
    else:
        longer = _head_config(exported)
        is_longer = head.shape == usual_shape(head.kind).fitted_to(longer)
        saved = foreign_heads.modules_of(
            head.kind, longer if is_longer else config
        )
        for name, (weights, bias) in zip(saved, head.layers):
            tensors[f"{ROOT}{name}.weight"] = weights
            tensors[f"{ROOT}{name}.bias"] = bias
        # A head of several layers may be one module.
        modules = (name.removeprefix(prefix) for name in saved)
        saved = tuple(dict.fromkeys(n.partition(".")[0] for n in modules))
    labels = () if head.kind == CHOICE else head.labels
    model = describe_head(head.kind, labels, kind)
    if head.kind == CHOICE:
        model["num_choices"] = len(head.labels)
    if head.threshold is not None:
        model[foreign_heads.THRESHOLD] = head.threshold
    described["task_type"] = TASK_OF_KIND.get(head.kind)
    described["modules_to_save"] = list(saved)
    if head.kind not in TASK_OF_KIND:
        # As peft says it of a task of no type.
        described["auto_mapping"] = {
            "base_model_class": model["architectures"][0],
            "parent_library": f"transformers.models.{kind}.modeling_{kind}",
        }
    return {
        **contents,
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: described,
        MODEL_CONFIG_FILE: {"model_type": kind, **model},
    }
