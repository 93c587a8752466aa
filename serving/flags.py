"""The flags of the programs that answer with trained adapters."""

from absl import flags

from engines.products import DTYPES
from errors import UserError

FLAGS = flags.FLAGS


def define_adapter_flags() -> None:
    """Defines the flags of what answers with trained adapters."""
    string = flags.DEFINE_string
    string(
        "init_checkpoint",
        None,
        "The pretrained BERT that the adapters were trained on, in any form "
        "that run_classifier.py takes.",
    )
    string(
        "bert_config_file",
        None,
        "JSON file of BERT's sizes; default: the one beside the model.",
    )
    string(
        "vocab_file",
        None,
        "File of the vocabulary; default: the one beside the model.",
    )
    flags.DEFINE_multi_string(
        "adapter",
        [],
        "Folder of a trained adapter, or NAME=FOLDER",
    )
    string(
        "library",
        None,
        "Folder of an adapter library, where parts of compositions are looked "
        "for too.",
    )
    flags.DEFINE_list(
        "task", [], "Names of adapters in --library, as mrpc,rte, or all."
    )
    flags.DEFINE_list(
        "exchange_part",
        [],
        "Trained adapters that take the places of others in compositions: "
        "english=german puts german in the place of english.",
    )
    flags.DEFINE_integer(
        "max_seq_length",
        None,
        "Longest input in tokens, the rest is cut off; default: what each "
        "adapter was trained with.",
    )
    flags.DEFINE_integer("predict_batch_size", 32, "Rows computed at once.")
    types = ["float32", "bfloat16"]
    flags.DEFINE_enum(
        "compute_dtype",
        types[0],
        DTYPES,
        "Type of products and activations; auto takes the faster one here.",
    )
    flags.DEFINE_enum(
        "adapter_dtype",
        types[0],
        types,
        "Type in which the adapters of several tasks are kept in memory.",
    )


def check_adapter_flags() -> None:
    """Checks the flags of what answers with trained adapters.

    Raises:
        UserError: one is missing, or its value is too small.
    """
    for name in ("predict_batch_size", "max_seq_length"):
        value = FLAGS[name].value
        if value is not None and value < (3 if name == "max_seq_length" else 1):
            raise UserError(f"--{name} is {value}, which is too small")
    if not FLAGS.init_checkpoint:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT that the "
            "adapters were trained upon"
        )
