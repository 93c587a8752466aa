"""Fields of other programs' descriptions, and those that are refused.

Source of the fields below: modules of sentence-transformers 5.7.0, and names
that older versions wrote.
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
