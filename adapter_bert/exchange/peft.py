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
from adapter_bert.checkpoints import (
    foreign_fields,
    sentence_transformers,
)
from adapter_bert.checkpoints.hugging_face import (
    as_bert,
    describe_head,
    google_name,
    hugging_face_name,
    kind_of_head,
)
from adapter_bert.errors import UserError
from adapter_bert.exchange import (
    foreign_heads,
    peft_lora,
    peft_modules,
    peft_words,
)
from adapter_bert.exchange.foreign_base import (
    Adapter,
    Exported,
    Head,
    Tensors,
    check_depth,
    unit_scales,
    usual_shape,
)
from adapter_bert.exchange.foreign_heads import HeadOptions
from adapter_bert.exchange.peft_modules import ROOT
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.fine_tuning import LayerNormOnly
from adapter_bert.methods.ia3 import KEY_VALUE, OUTPUT, Ia3
from adapter_bert.methods.lora import Lora
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
# Variable -> tensor, in a module whose name is behind `ROOT`.
TENSORS = {
    "lora_a": "lora_A.weight",
    "lora_b": "lora_B.weight",
    "dora_m": "lora_magnitude_vector",
    "vera_d": "vera_lambda_d",
    "vera_b": "vera_lambda_b",
    "ia3_scale": "ia3_l",
}


def read(
    path: str, config: BertConfig, options: HeadOptions
) -> tuple[TuningMethod, dict[str, np.ndarray], Head, dict[str, Any]]:
    """Reads an adapter of `save_pretrained`, as `foreign_adapters` wants it."""
    described = files.read_object(path, "peft's description", CONFIG)
    kind = described["peft_type"]
    readers = {
        "LORA": (peft_lora.read_lora, foreign_fields.PEFT_LORA),
        "ADALORA": (peft_lora.read_adalora, foreign_fields.PEFT_ADALORA),
        "VERA": (peft_lora.read_vera, foreign_fields.PEFT_VERA),
        "IA3": (_read_ia3, foreign_fields.PEFT_IA3),
        "LN_TUNING": (_read_layer_norms, foreign_fields.PEFT),
    }
    if kind not in readers:
        raise UserError(
            f"{path}: peft's {kind[:80]} is not read; expected LORA, ADALORA, "
            "VERA, LN_TUNING, or IA3 that is the same function as this "
            "project's"
        )
    reader, fields = readers[kind]
    foreign_fields.check(described, fields, path)
    if described.get("bias", "none") != "none":
        raise UserError(
            f"{path}: BERT's own biases were trained too (bias="
            f"{described['bias']!r:.80}), which is no method of this project; "
            "expected bias='none'"
        )
    tensors = Tensors(os.path.dirname(path), WEIGHTS_FILE, TORCH_FILE)
    peft_words.check(tensors, config, path)
    # Names of a state_dict become those of a saved adapter.
    tensors.rename(
        lambda name: ADAPTER_NAME.sub(lambda m: "".join(m.groups("")), name)
    )
    architecture = ARCHITECTURES[config.model_type]
    if sentence_transformers.is_folder(os.path.dirname(path)):
        tensors.rename(
            lambda name: (
                name
                if name.startswith(f"{ROOT}{architecture.prefix}")
                else name.replace(ROOT, f"{ROOT}{architecture.prefix}", 1)
            )
        )
    modules = (name.removeprefix(ROOT) for name in tensors.names)
    check_depth(
        (as_bert(name, config.model_type) for name in modules), config, path
    )
    adapter = Adapter(described, tensors, config, path)
    peft_modules.check_saved(adapter)
    head = _read_head(adapter, options)
    method, values = reader(adapter)
    rows, words = peft_words.read(adapter)
    if rows is not None:
        method = with_new_words(method, len(rows))
        values = {**values, NEW_WORDS: rows}
        head = dataclasses.replace(head, words=words)
    tensors.check_all_taken()
    return method, values, head, {"version": described.get("peft_version")}


def _read_ia3(adapter: Adapter):
    """Scales of keys, of values and of the last matrix's inputs."""
    described, tensors, config, path, _ = adapter
    values = unit_scales(config)
    places = peft_modules.places(adapter, "ia3_l")
    inputs = described.get("feedforward_modules")
    inputs = peft_modules.named(
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
                f"{path}: (IA)^3 scales {place[:80]} too, which this "
                "project's does not; peft's default does for BERT, since "
                "'output.dense' is also in attention.output.dense; expected "
                r"target_modules='.*(key|value|layer\.\d+\.output\.dense)'"
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


def _read_layer_norms(adapter: Adapter):
    """Reads values of LayerNorms; others are those of the BERT."""
    _, tensors, config, path, _ = adapter
    shapes, values = list_variables(config), {}
    for name in tensors.names:
        module, mark, end = name.rpartition(LAYER_NORM_MARK)
        variable, _ = google_name(f"{module.removeprefix(ROOT)}.{end}")
        if mark and variable in shapes and LAYER_NORM in variable:
            values[variable] = tensors.take(name, *shapes[variable])
    if not values:
        raise UserError(
            f"{path}: {tensors.path} holds no LayerNorm of this BERT; is it of "
            "another model?"
        )
    return LayerNormOnly(), values


def _read_head(adapter: Adapter, options: HeadOptions) -> Head:
    """Reads the head, which peft trains next to the adapter.

    Its kind is that of the class of the model, which peft writes for a task of
    no type, or which a config in the folder names.
    """
    described, tensors, config, path, _ = adapter
    folder = os.path.dirname(path)
    if sentence_transformers.is_folder(folder):
        place, pooled = sentence_transformers.read(folder)
        sentence_transformers.check_width(folder, pooled, config.hidden_size)
        if described.get("task_type") not in (None, FEATURES):
            raise UserError(
                f"{path}: task_type is {described['task_type']!r:.80}, but "
                f"{place} makes vectors, expected {FEATURES}"
            )
        return Head(VECTORS, usual_shape(VECTORS), pooled=pooled)
    place = os.path.join(folder, MODEL_CONFIG_FILE)
    model: dict[str, Any] = {}
    if files.exists(place):
        model = files.read_object(place, "a model's config", MODEL_CONFIG)
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
    """Finds the kind of head in a file of transformers' own `add_adapter`.

    Heads of texts and of tags may have the same tensors.
    """
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


def write(exported: Exported) -> dict[str, Any]:
    """Returns the contents of an adapter's files, by name."""
    method, shared = without_new_words(exported.method), {}
    if isinstance(method, Lora) and method.gating:
        raise UserError(
            f"{exported.source}: LoRA with gates is not written for peft; "
            "write it for adapterhub"
        )
    if isinstance(method, Lora):
        config = peft_lora.describe_lora(method, exported.config)
    elif isinstance(method, Vera):
        config, shared = peft_lora.describe_vera(method, exported.config)
    elif isinstance(method, Ia3):
        config = {
            "peft_type": "IA3",
            "target_modules": peft_modules.modules(
                (*KEY_VALUE, OUTPUT), exported.config
            ),
            "feedforward_modules": peft_modules.modules(
                [OUTPUT], exported.config
            ),
        }
    elif isinstance(method, LayerNormOnly):
        # An ending could be of the LayerNorm of a head, too.
        names = (_layer_norm(n, exported) for n in _layer_norms(exported))
        config = {
            "peft_type": "LN_TUNING",
            "target_modules": sorted({module for module, _ in names}),
        }
    else:
        raise UserError(
            f"{exported.source}: {method.name} is not written for peft; "
            "expected lora, dora, vera, ia3 or layernorm"
        )
    contents: dict[str, Any] = {}
    if exported.new_tokens:
        if not isinstance(method, Lora) or exported.head.kind == VECTORS:
            raise UserError(
                f"{exported.source}: new words next to {method.name} with a "
                f"head of {exported.head.kind} are not written for peft; "
                "expected lora or dora with a head that answers"
            )
        more, contents = peft_words.describe(
            exported.new_tokens, exported.config
        )
        config.update(more)
        shared.update(peft_words.tensors_of(exported))
    architecture = ARCHITECTURES[exported.config.model_type]
    head, tensors = exported.head, {}
    usual, bert_config = usual_shape(head.kind), exported.config
    with_pooler = foreign_heads.with_pooler(bert_config)
    if head.kind == CHOICE:
        with_pooler = with_pooler.for_choices
    if head.shape == usual.fitted_to(with_pooler):
        bert_config = with_pooler
    elif head.shape != usual:
        raise UserError(
            f"{exported.source}: a head of this form ({head.shape}) is not "
            "written for peft; write it for adapterhub"
        )
    if head.kind == VECTORS:
        tensors = _adapter_tensors(method, exported, shared)
        return {
            WEIGHTS_FILE: {
                name.replace(f"{ROOT}{architecture.prefix}", ROOT): value
                for name, value in tensors.items()
            },
            CONFIG_FILE: {
                **_common(exported),
                "task_type": FEATURES,
                **config,
            },
            # Without it transformers guess the model from the path's words.
            MODEL_CONFIG_FILE: {"model_type": exported.config.model_type},
            **sentence_transformers.describe(
                head.pooled, exported.config.hidden_size
            ),
            **exported.tokenizer,
        }
    saved = foreign_heads.modules_of(head.kind, bert_config)
    if head.kind == MASKED_LM:
        named = foreign_heads.masked_lm_tensors(head, exported.config)
        is_tied = exported.config.tie_word_embeddings
        if is_tied and head.words is None:
            raise UserError(
                f"{exported.source}: peft keeps BERT's word embeddings with a "
                "head of masked words; pass the BERT as --init_checkpoint"
            )
        if is_tied:
            named[foreign_heads.decoder(exported.config)] = head.words
        tensors = {f"{ROOT}{name}": value for name, value in named.items()}
    else:
        for name, (weights, bias) in zip(saved, head.layers):
            tensors[f"{ROOT}{name}.weight"] = weights
            tensors[f"{ROOT}{name}.bias"] = bias
        # A head of several layers may be one module.
        modules = (name.removeprefix(architecture.prefix) for name in saved)
        saved = tuple(dict.fromkeys(n.partition(".")[0] for n in modules))
    tensors.update(_adapter_tensors(method, exported, shared))
    kind = exported.config.model_type
    labels = () if head.kind == CHOICE else head.labels
    model = describe_head(head.kind, labels, kind)
    if head.kind == CHOICE:
        model["num_choices"] = len(head.labels)
    if head.threshold is not None:
        model[foreign_heads.THRESHOLD] = head.threshold
    common = {
        **_common(exported),
        "task_type": TASK_OF_KIND.get(head.kind),
        "modules_to_save": list(saved),
    }
    if head.kind not in TASK_OF_KIND:
        # As peft says it of a task of no type.
        common["auto_mapping"] = {
            "base_model_class": model["architectures"][0],
            "parent_library": f"transformers.models.{kind}.modeling_{kind}",
        }
    return {
        **contents,
        WEIGHTS_FILE: tensors,
        CONFIG_FILE: {**common, **config},
        MODEL_CONFIG_FILE: {"model_type": kind, **model},
    }


def _common(exported: Exported) -> dict[str, Any]:
    is_of_norms = isinstance(exported.method, LayerNormOnly)
    return {
        "base_model_name_or_path": exported.base_name,
        "inference_mode": True,
        # No field of LayerNorms.
        **({} if is_of_norms else {"fan_in_fan_out": False}),
    }


def _adapter_tensors(
    method: TuningMethod, exported: Exported, shared: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    tensors = dict(shared)
    if isinstance(method, LayerNormOnly):
        for variable in _layer_norms(exported):
            name = LAYER_NORM_MARK.join(_layer_norm(variable, exported))
            tensors[f"{ROOT}{name}"] = exported.read(variable)
    for variable in method.variables(exported.config):
        scope, _, end = variable.rpartition("/")
        value = exported.read(variable).T
        if end == "ia3_scale":
            value = value.reshape(_scale_shape(scope, value.size))
        module = peft_modules.their_module(scope, exported.config)
        tensors[f"{ROOT}{module}.{TENSORS[end]}"] = value
    return tensors


def _layer_norms(exported: Exported) -> list[str]:
    return [n for n in list_variables(exported.config) if LAYER_NORM in n]


def _layer_norm(variable: str, exported: Exported) -> tuple[str, str]:
    kind = exported.config.model_type
    module, _, end = hugging_face_name(variable, kind)[0].rpartition(".")
    return module, end


def _scale_shape(scope: str, size: int) -> tuple[int, int]:
    """Shapes (IA)^3's scale of a module's outputs, or of its inputs."""
    return (size, 1) if scope.endswith(KEY_VALUE) else (1, size)
