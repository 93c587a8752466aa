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
    """A field with which `what` is computed, as by no method here.

    The default is not refused; false stands for null and for what is empty too.
    """

    what: str
    default: Any = False

    def allows(self, value: Any) -> bool:
        """Whether a value leaves what is computed as it is."""
        return is_off(value) if self.default is False else value is self.default


def is_off(value: Any) -> bool:
    """Whether a value says that what it names is not there."""
    return value is None or value is False or value in ("", [], {})


def _all(rule: str, names: str) -> Dict[str, Any]:
    """One rule for several fields."""
    return dict.fromkeys(names.split(), rule)


PEFT = {
    **_all(USED, "peft_type task_type"),
    **_all(COMPARED, "target_modules exclude_modules modules_to_save"),
    **_all(
        NO_EFFECT,
        "peft_version auto_mapping base_model_name_or_path revision "
        "inference_mode",
    ),
    "fan_in_fan_out": Refused("transposed matrices"),
}
PEFT_LORA = {
    **PEFT,
    **_all(COMPARED, "r rank_pattern layers_to_transform layers_pattern"),
    **_all(USED, "lora_alpha alpha_pattern use_rslora init_lora_weights bias"),
    **_all(
        NO_EFFECT,
        "lora_dropout megatron_core loftq_config eva_config corda_config "
        "lora_ga_config qalora_group_size ensure_weight_tying runtime_config "
        "merge_weights",
    ),
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
}
PEFT_IA3 = {
    **PEFT,
    "feedforward_modules": COMPARED,
    "init_ia3_weights": NO_EFFECT,
}

# Of `adapter_config.json`, and of `head_config.json`.
HUB_FILE = {
    **_all(USED, "config name version model_class"),
    **_all(COMPARED, "model_type hidden_size num_labels label2id"),
    **_all(NO_EFFECT, "model_name type"),
}
HUB_BOTTLENECK = {
    **_all(
        USED,
        "architecture non_linearity original_ln_before residual_before_ln "
        "is_parallel",
    ),
    **_all(
        COMPARED,
        "mh_adapter output_adapter reduction_factor leave_out inv_adapter "
        "inv_adapter_reduction_factor scaling",
    ),
    # `adapter_residual_before_ln` is of `ln_after` alone, `cross_adapter` of
    # decoders, and the second half of `phm_layer`.
    **_all(
        NO_EFFECT,
        "adapter_residual_before_ln cross_adapter dropout stochastic_depth "
        "init_weights init_weights_seed "
        "phm_dim phm_rank phm_bias phm_c_init phm_init_range learn_phm "
        "shared_phm_rule factorized_phm_rule shared_W_phm factorized_phm_W "
        "hypercomplex_nonlinearity",
    ),
    "original_ln_after": Refused("no LayerNorm after the adapter", True),
    "ln_before": Refused("a LayerNorm in the adapter"),
    "ln_after": Refused("a LayerNorm in the adapter"),
    "use_gating": Refused("gates"),
    "phm_layer": Refused("Compacter's products"),
    "invertible_adapter": Refused("invertible adapters that are named so"),
}
HUB_LORA = {
    **_all(USED, "architecture alpha composition_mode"),
    **_all(
        COMPARED,
        "selfattn_lora attn_matrices intermediate_lora output_lora leave_out r",
    ),
    **_all(NO_EFFECT, "dropout init_weights init_weights_seed dtype"),
    "use_gating": Refused("gates"),
    "use_dora": Refused("DoRA"),
    "vera_d": Refused("VeRA"),
    "vera_b": Refused("VeRA"),
}
HUB_PREFIX = {
    **_all(USED, "architecture non_linearity"),
    **_all(COMPARED, "flat prefix_length bottleneck_size"),
    # The first two are of decoders alone, `shared_gating` of `use_gating`.
    **_all(
        NO_EFFECT,
        "encoder_prefix cross_prefix shared_gating dropout init_weights_seed",
    ),
    "use_gating": Refused("a prefix with gates"),
    "leave_out": Refused("a prefix without some layers"),
}
HUB_HEAD = {
    **_all(USED, "head_type activation_function use_pooler"),
    **_all(COMPARED, "layers bias num_labels label2id"),
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
    """Compares a description with one of `FIELDS`.

    If it is open, users may add fields, which say nothing of what is computed.

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
