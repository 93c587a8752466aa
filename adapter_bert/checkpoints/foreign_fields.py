"""Fields of other programs' descriptions, and those that are refused.

Sources: `LoraConfig`, `IA3Config` and `LNTuningConfig` of peft 0.21.2;
`BnConfig`, `LoRAConfig`, `PrefixTuningConfig`, `build_full_config` and the
heads' `config` of `adapters` 1.3.0, AdapterHub's library; modules of
sentence-transformers 5.7.0; names that older versions of these wrote. The table
in results/exchange.md says what each field decides.
"""

from collections.abc import Mapping
from typing import Any, Optional

from absl import logging

from adapter_bert.errors import UserError

# Field -> what no method here computes; None for a field that is read, or has
# no effect on what is computed.
Fields = dict[str, Optional[str]]


def _fields(names: str, **refused: str) -> Fields:
    return {**dict.fromkeys(names.split()), **refused}


PEFT = _fields(
    "peft_type task_type target_modules exclude_modules modules_to_save "
    "peft_version auto_mapping base_model_name_or_path revision inference_mode",
    fan_in_fan_out="transposed matrices",
)
PEFT_IA3 = PEFT | _fields("feedforward_modules init_ia3_weights")
PEFT_LORA = PEFT | _fields(
    "r rank_pattern layers_to_transform layers_pattern lora_alpha "
    "alpha_pattern use_rslora init_lora_weights bias lora_dropout "
    "megatron_core loftq_config eva_config corda_config lora_ga_config "
    "qalora_group_size ensure_weight_tying runtime_config merge_weights "
    "use_dora trainable_token_indices",
    use_qalora="QALoRA",
    use_bdlora="BD-LoRA",
    lora_bias="biases of updates",
    layer_replication="replicated layers",
    target_parameters="updates of bare parameters",
    megatron_config="Megatron's layers",
    alora_invocation_tokens="activated LoRA",
    arrow_config="Arrow's routing",
    kasa_config="KaSA",
    monteclora_config="MonteCLoRA",
    velora_config="VeLoRA",
    enable_lora="updates of parts of a matrix",
)
PEFT_ADALORA = (
    PEFT_LORA
    | _fields(
        "init_r target_r tinit tfinal deltaT beta1 beta2 orth_reg_weight "
        "total_step"
    )
    | _fields(
        "",
        use_dora="DoRA",
        use_rslora="AdaLoRA with rsLoRA's scale",
        alpha_pattern="AdaLoRA with several alphas",
    )
)
PEFT_VERA = PEFT | _fields(
    "r projection_prng_key save_projection vera_dropout d_initial bias "
    "init_weights layers_to_transform layers_pattern"
)
# `adapter_config.json` and `head_config.json`.
HUB_FILE = _fields(
    "config name version model_class model_type hidden_size num_labels "
    "label2id label_threshold model_name type config_id"
)
# `adapter_residual_before_ln` acts with `ln_after` alone, `cross_adapter` in
# decoders, and the second half with `phm_layer`.
HUB_BOTTLENECK = _fields(
    "architecture non_linearity original_ln_before residual_before_ln "
    "is_parallel mh_adapter output_adapter reduction_factor leave_out "
    "inv_adapter inv_adapter_reduction_factor scaling "
    "adapter_residual_before_ln cross_adapter dropout stochastic_depth "
    "use_gating init_weights init_weights_seed phm_dim phm_rank phm_bias "
    "phm_c_init phm_init_range learn_phm shared_phm_rule "
    "factorized_phm_rule shared_W_phm factorized_phm_W "
    "hypercomplex_nonlinearity",
    original_ln_after="no LayerNorm after the adapter",
    ln_before="a LayerNorm in the adapter",
    ln_after="a LayerNorm in the adapter",
    phm_layer="Compacter's products",
    invertible_adapter="invertible adapters that are named so",
)
HUB_LORA = _fields(
    "architecture alpha composition_mode selfattn_lora attn_matrices "
    "intermediate_lora output_lora leave_out r dropout init_weights "
    "use_gating init_weights_seed dtype vera_d vera_b",
    use_dora="a DoRA that scales BERT's biases too",
)
# `encoder_prefix` and `cross_prefix` act in decoders alone.
HUB_PREFIX = _fields(
    "architecture non_linearity flat prefix_length bottleneck_size "
    "encoder_prefix cross_prefix use_gating shared_gating dropout "
    "init_weights_seed",
    leave_out="a prefix without some layers",
)
HUB_PROMPT = _fields(
    "architecture prompt_length combine prompt_init prompt_init_text "
    "random_uniform_scale init_weights_seed"
)
HUB_REFT = _fields(
    "architecture layers prefix_positions suffix_positions r orthogonality "
    "tied_weights non_linearity output_reft dropout dtype "
    "init_weights_seed"
)
HUB_UNION = _fields("architecture configs")
HUB_HEAD = _fields(
    "head_type activation_function use_pooler layers bias num_labels "
    "num_choices label2id dropout_prob"
)
HUB_MASKED_LM = _fields(
    "head_type activation_function layers bias layer_norm vocab_size "
    "embedding_size shift_labels label2id dropout_prob"
)
# Files of sentence-transformers: of the whole, the model of transformers, and
# the pooling.
SENTENCE = _fields(
    "__version__ model_type prompts default_prompt_name similarity_fn_name",
    truncate_dim="vectors that are cut after they got the length 1",
)
SENTENCE_MODEL = _fields(
    "max_seq_length do_lower_case transformer_task module_output_name "
    "modality_config unpad_inputs"
)
SENTENCE_POOLING = _fields(
    "word_embedding_dimension embedding_dimension pooling_mode include_prompt "
    "pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens "
    "pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens "
    "pooling_mode_lasttoken"
)
SENTENCE_DENSE = _fields(
    "in_features out_features bias activation_function module_input_name "
    "module_output_name"
)
# Fields that are on by default; all others are off.
ON = ("original_ln_after",)


def check(
    described: Mapping[str, Any],
    fields: Fields,
    source: str,
    is_open: bool = False,
) -> None:
    """Compares a description with the fields that its program writes.

    If it is open, users may add fields, which have no effect.
    """
    for name, value in described.items():
        is_off = value is None or value is False or value in ("", [], {})
        if name not in fields:
            if not is_open and not is_off:
                raise UserError(
                    f"{source}: {name[:80]!r} is {str(value)[:80]!r}, a field "
                    "that this version does not know and that may change what "
                    "is computed; delete the line if it does not"
                )
            logging.warning(
                "%s: the field %r is not known, and has no effect here",
                source,
                name[:80],
            )
        elif fields[name]:
            if not (value is True if name in ON else is_off):
                raise UserError(
                    f"{source}: {name} is {value!r:.80}: no method of this "
                    f"project computes {fields[name]}"
                )
