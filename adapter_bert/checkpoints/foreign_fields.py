"""Every field of other programs' descriptions, and what becomes of each.

Sources: `LoraConfig` and `IA3Config` of peft 0.21.2; `BnConfig`, `LoRAConfig`,
`PrefixTuningConfig`, `build_full_config` and the heads' `config` of `adapters`
1.3.0, AdapterHub's library; names that older versions of both wrote.
"""

import dataclasses
from typing import Any, Dict, Mapping

from absl import logging

from adapter_bert.errors import UserError

# It decides what is read: computed with, or refused with its own message.
USED = "used"
# It has to agree with the tensors.
COMPARED = "compared"
# It decides how training begins or goes, or is for people.
NO_EFFECT = "no effect"


@dataclasses.dataclass(frozen=True)
class Refused:
    """A field that changes what is computed, in a way that no method here has.

    Attributes:
        what: what is then computed.
        default: the value that is not refused; false stands for null and for
            what is empty, too.
    """

    what: str
    default: Any = False

    def allows(self, value: Any) -> bool:
        """Whether a value leaves what is computed as it is."""
        return is_off(value) if self.default is False else value is self.default


def is_off(value: Any) -> bool:
    """Whether a value says that what it names is not there."""
    return value is None or value is False or value in ("", [], {})


PEFT = {
    "peft_type": USED,
    "task_type": USED,
    "target_modules": COMPARED,
    "exclude_modules": COMPARED,
    "modules_to_save": COMPARED,
    "fan_in_fan_out": Refused("transposed matrices"),
    "peft_version": NO_EFFECT,
    "auto_mapping": NO_EFFECT,
    "base_model_name_or_path": NO_EFFECT,
    "revision": NO_EFFECT,
    "inference_mode": NO_EFFECT,
}
PEFT_LORA = {
    **PEFT,
    "r": COMPARED,
    "rank_pattern": COMPARED,
    "layers_to_transform": COMPARED,
    "layers_pattern": COMPARED,
    "lora_alpha": USED,
    "alpha_pattern": USED,
    "use_rslora": USED,
    "init_lora_weights": USED,
    "bias": USED,
    "use_dora": Refused("DoRA"),
    "use_qalora": Refused("QALoRA"),
    "use_bdlora": Refused("BD-LoRA"),
    "lora_bias": Refused("biases of updates"),
    "layer_replication": Refused("replicated layers"),
    "trainable_token_indices": Refused("trained word embeddings"),
    "target_parameters": Refused("updates of bare parameters"),
    "megatron_config": Refused("Megatron's layers"),
    "alora_invocation_tokens": Refused("activated LoRA"),
    "arrow_config": Refused("Arrow's routing"),
    "kasa_config": Refused("KaSA"),
    "monteclora_config": Refused("MonteCLoRA"),
    "velora_config": Refused("VeLoRA"),
    "enable_lora": Refused("updates of parts of a matrix"),
    "lora_dropout": NO_EFFECT,
    "megatron_core": NO_EFFECT,
    "loftq_config": NO_EFFECT,
    "eva_config": NO_EFFECT,
    "corda_config": NO_EFFECT,
    "lora_ga_config": NO_EFFECT,
    "qalora_group_size": NO_EFFECT,
    "ensure_weight_tying": NO_EFFECT,
    "runtime_config": NO_EFFECT,
    "merge_weights": NO_EFFECT,
}
PEFT_IA3 = {
    **PEFT,
    "feedforward_modules": COMPARED,
    "init_ia3_weights": NO_EFFECT,
}

# Of `adapter_config.json`, and of `head_config.json`.
HUB_FILE = {
    "config": USED,
    "name": USED,
    "version": USED,
    "model_class": USED,
    "model_type": COMPARED,
    "hidden_size": COMPARED,
    "num_labels": COMPARED,
    "label2id": COMPARED,
    "model_name": NO_EFFECT,
    "type": NO_EFFECT,
}
HUB_BOTTLENECK = {
    "architecture": USED,
    "mh_adapter": COMPARED,
    "output_adapter": COMPARED,
    "reduction_factor": COMPARED,
    "leave_out": COMPARED,
    "inv_adapter": COMPARED,
    "inv_adapter_reduction_factor": COMPARED,
    "scaling": COMPARED,
    "non_linearity": USED,
    "original_ln_before": USED,
    "residual_before_ln": USED,
    "is_parallel": USED,
    "original_ln_after": Refused("no LayerNorm after the adapter", True),
    "ln_before": Refused("a LayerNorm in the adapter"),
    "ln_after": Refused("a LayerNorm in the adapter"),
    "use_gating": Refused("gates"),
    "phm_layer": Refused("Compacter's products"),
    "invertible_adapter": Refused("invertible adapters that are named so"),
    # Of `ln_after` alone.
    "adapter_residual_before_ln": NO_EFFECT,
    # Of decoders alone.
    "cross_adapter": NO_EFFECT,
    "dropout": NO_EFFECT,
    "stochastic_depth": NO_EFFECT,
    "init_weights": NO_EFFECT,
    "init_weights_seed": NO_EFFECT,
    # Of `phm_layer` alone.
    "phm_dim": NO_EFFECT,
    "phm_rank": NO_EFFECT,
    "phm_bias": NO_EFFECT,
    "phm_c_init": NO_EFFECT,
    "phm_init_range": NO_EFFECT,
    "learn_phm": NO_EFFECT,
    "shared_phm_rule": NO_EFFECT,
    "factorized_phm_rule": NO_EFFECT,
    "shared_W_phm": NO_EFFECT,
    "factorized_phm_W": NO_EFFECT,
    "hypercomplex_nonlinearity": NO_EFFECT,
}
HUB_LORA = {
    "architecture": USED,
    "selfattn_lora": COMPARED,
    "attn_matrices": COMPARED,
    "intermediate_lora": COMPARED,
    "output_lora": COMPARED,
    "leave_out": COMPARED,
    "r": COMPARED,
    "alpha": USED,
    "composition_mode": USED,
    "use_gating": Refused("gates"),
    "use_dora": Refused("DoRA"),
    "vera_d": Refused("VeRA"),
    "vera_b": Refused("VeRA"),
    "dropout": NO_EFFECT,
    "init_weights": NO_EFFECT,
    "init_weights_seed": NO_EFFECT,
    "dtype": NO_EFFECT,
}
HUB_PREFIX = {
    "architecture": USED,
    "flat": COMPARED,
    "prefix_length": COMPARED,
    "bottleneck_size": COMPARED,
    "non_linearity": USED,
    "use_gating": Refused("a prefix with gates"),
    "leave_out": Refused("a prefix without some layers"),
    # Of decoders alone; `shared_gating` of `use_gating` alone.
    "encoder_prefix": NO_EFFECT,
    "cross_prefix": NO_EFFECT,
    "shared_gating": NO_EFFECT,
    "dropout": NO_EFFECT,
    "init_weights_seed": NO_EFFECT,
}
HUB_HEAD = {
    "head_type": USED,
    "activation_function": USED,
    "use_pooler": USED,
    "layers": COMPARED,
    "bias": COMPARED,
    "num_labels": COMPARED,
    "label2id": COMPARED,
    "dropout_prob": NO_EFFECT,
}
# By program and part, for tests and documents.
FIELDS: Dict[str, Mapping[str, Any]] = {
    "peft's files": PEFT,
    "peft's LoRA": PEFT_LORA,
    "peft's (IA)^3": PEFT_IA3,
    "AdapterHub's files": HUB_FILE,
    "AdapterHub's bottleneck adapters": HUB_BOTTLENECK,
    "AdapterHub's LoRA and (IA)^3": HUB_LORA,
    "AdapterHub's prefixes": HUB_PREFIX,
    "AdapterHub's heads": HUB_HEAD,
}


def check(
    described: Mapping[str, Any],
    fields: Mapping[str, Any],
    source: str,
    is_open: bool = False,
) -> None:
    """Compares a description with the fields that are known.

    Args:
        described: the description.
        fields: one of `FIELDS`.
        source: the file, for messages.
        is_open: whether users may add fields, which then say nothing of what is
            computed.

    Raises:
        UserError: a field has a value that no method here follows, or is
            unknown and not off.
    """
    for name, value in described.items():
        rule = fields.get(name)
        if isinstance(rule, Refused) and not rule.allows(value):
            raise UserError(
                f"{source}: {name} is {value!r}: no method of this project "
                f"computes {rule.what}"
            )
        if rule is None and not is_open and not is_off(value):
            raise UserError(
                f"{source}: {name[:80]!r} is {str(value)[:80]!r}, a field that "
                "this version does not know and that may change what is "
                "computed; delete the line if it does not"
            )
        if rule is None:
            logging.warning(
                "%s: the field %r is not known, and has no effect here",
                source,
                name[:80],
            )
