"""TensorFlow checkpoints: Google's BERTs, adapter-bert's and our own."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from adapter_bert import files
from adapter_bert.bert.architectures import PROJECTION
from adapter_bert.bert.encoder import Shape
from adapter_bert.checkpoints.weights import Weights, as_floats
from adapter_bert.errors import UserError, first_line

# Ends of the names of a checkpoint's files, after its prefix.
FILE_ENDS = re.compile(r"\.(?:index|meta|data-\d{5}-of-\d{5})$")
# Before names of google-research/electra's discriminator.
ELECTRA = "electra/"
_GROUP = "bert/encoder/transformer/group_0/inner_group_0"
# Beginnings of names in google-research/electra and google-research/albert ->
# ours; the first that fits counts.
OTHER_NAMES = (
    ("electra/embeddings_project", PROJECTION),
    ("electra", "bert"),
    ("bert/encoder/embedding_hidden_mapping_in", PROJECTION),
    *(
        (f"{_GROUP}/{theirs}", f"bert/encoder/group_0/{ours}")
        for theirs, ours in (
            ("attention_1", "attention"),
            ("LayerNorm", "attention/output/LayerNorm"),
            ("ffn_1/intermediate/output", "output"),
            ("ffn_1/intermediate", "intermediate"),
            ("LayerNorm_1", "output/LayerNorm"),
        )
    ),
)
# A variable of TensorFlow 2's checkpoints, which tells what the others are.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Bytes of an index, which TensorFlow takes into memory; one of 10,000 variables
# has less than a megabyte.
LARGEST_INDEX = 2**28


@contextlib.contextmanager
def guard(prefix: str) -> Iterator[None]:
    """Replaces the errors for a damaged checkpoint."""
    try:
        yield
    # TensorFlow's reader raises Python's errors for some damages.
    except (
        tf.errors.OpError,
        DecodeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise UserError(
            f"the checkpoint {prefix} is damaged or incomplete: "
            f"{first_line(error)}"
        ) from error


class Reader:
    """TensorFlow's reader of a checkpoint.

    Attributes:
        shapes: of all variables by name.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        files.check_plain(f"{prefix}.index", "the checkpoint's index")
        size = files.size(f"{prefix}.index")
        if size > LARGEST_INDEX:
            raise UserError(
                f"the checkpoint {prefix} has an index of {size:,} bytes, "
                f"expected at most {LARGEST_INDEX:,}"
            )
        with guard(prefix):
            self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
            shapes = self._reader.get_variable_to_shape_map()
        self.shapes: dict[str, Shape] = {
            name: tuple(shape) for name, shape in shapes.items()
        }

    def tensor(self, name: str) -> Any:
        """Reads a variable: an array, or bytes of a single text."""
        with guard(self._prefix):
            return self._reader.get_tensor(name)


def open_tensorflow(prefix: str) -> Weights:
    """Opens a TensorFlow checkpoint, as `bert_model.ckpt`."""
    reader = Reader(prefix)
    # A training may delete the checkpoint. TensorFlow opens the values with the
    # first that is read, and holds them.
    sizes = {name: np.prod(shape) for name, shape in reader.shapes.items()}
    if sizes:
        reader.tensor(min(sizes, key=sizes.get))
    sources = {our_name(name): name for name in reader.shapes}

    def read(name: str) -> np.ndarray:
        value = reader.tensor(sources[name])
        with guard(prefix):
            return as_floats(np.asarray(value))

    shapes = {name: reader.shapes[source] for name, source in sources.items()}
    is_electra = any(name.startswith(ELECTRA) for name in reader.shapes)
    # google-research/electra, `modeling.py`, has the error function.
    return Weights(prefix, shapes, read, "gelu_erf" if is_electra else "gelu")


def our_name(name: str) -> str:
    """Renames an ELECTRA's or ALBERT's variable; others stay."""
    for theirs, ours in OTHER_NAMES:
        match = re.fullmatch(rf"{theirs}/(.+)", name)
        if match:
            return f"{ours}/{match[1]}"
    return name


def read_whole(prefix: str) -> None:
    """Reads every tensor of a checkpoint."""
    reader = Reader(prefix)
    for name in reader.shapes:
        reader.tensor(name)


def refusal(path: str) -> str:
    """Says why a path opens no TensorFlow checkpoint."""
    prefix = FILE_ENDS.sub("", path)
    if prefix != path and files.exists(f"{prefix}.index"):
        return (
            f"--init_checkpoint {path} is one file of a checkpoint; pass what "
            f"all of them begin with, --init_checkpoint={prefix}"
        )
    if tf.io.gfile.glob(f"{prefix}.data-*") or files.exists(f"{prefix}.meta"):
        return (
            f"the checkpoint {prefix} lacks {prefix}.index; copy that file, "
            "too, from where its others come from"
        )
    state = "is no checkpoint" if files.exists(path) else "does not exist"
    return (
        f"--init_checkpoint {path} {state}; expected a TensorFlow checkpoint's "
        "prefix (as bert_model.ckpt), a .safetensors file, a module of TF-Hub "
        "or a folder with one"
    )


def check_name(path: str, flag: str) -> None:
    """Refuses a name that TensorFlow would take for a pattern."""
    odd = "".join(sorted(set(path) & set("*?[\\")))
    if odd:
        raise UserError(
            f"{flag} is {path}; TensorFlow finds no checkpoint under a name "
            f"with {odd}, choose another"
        )
