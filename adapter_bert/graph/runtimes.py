"""A task's model as a folder for TensorFlow Lite or ONNX Runtime.

    <folder>/model.tflite, or model.onnx
    <folder>/tokenizer.json     of the library `tokenizers`
    <folder>/task.json          labels, settings, inputs and outputs, SHA-256

A file is computed by its own runtime, and compared with TensorFlow, before the
folder appears. docs/export.md shows programs that read one.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

from adapter_bert.start_tensorflow import without_notices

import numpy as np
import tensorflow as tf

from adapter_bert import files
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, describe
from adapter_bert.bert import int8
from adapter_bert.errors import UserError, first_line
from adapter_bert.graph.exported import digest
from adapter_bert.graph.ids_model import INPUTS, IdsModel
from adapter_bert.tasks.squad import NEVER
from adapter_bert.training.settings import FLOAT32, INT8

TFLITE, ONNX = "tflite", "onnx"
TOKENIZER, TASK = "tokenizer.json", "task.json"
# Values of `--weights`, and the greatest difference from TensorFlow: of a
# probability, or of other outputs in units of the greatest one above 1. In int8
# activations are rounded too.
LIMITS = {FLOAT32: 1e-5, INT8: 0.25}
# Bytes of a model's values. A file of either runtime ends at 2^31 (flatbuffers,
# protocol buffers).
GREATEST_SIZE = 2**31 - 2**24
# Version of ONNX's operations. Source: onnxruntime's documentation of
# compatibility; all releases since 1.14 (2023) have these.
OPSET = 17
# Packages of `make onnx`.
ONNX_PACKAGES = ("onnxruntime", "tf2onnx")
# Operations that TensorFlow Lite lacks, in its converter's message.
LACKING = re.compile(r"TF Select ops: (.*)")
# All lines.
ANYTHING = re.compile(b"")
# (rows, longest row) of the batches that are compared.
COMPARED = ((1, 8), (4, 32))

# Arrays by name -> arrays by name.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class Runtime(NamedTuple):
    """Describes a runtime, which computes a `file`.

    `convert` writes a model, with `--weights`, to a path; `load` makes a
    function of a file; the versions of `packages` are recorded.
    """

    name: str
    file: str
    convert: Callable[[IdsModel, str, str], None]
    load: Callable[[str], Run]
    packages: tuple[str, ...] = ()


def export(
    bert: FrozenBert,
    name: str,
    task: LoadedTask,
    folder: str,
    form: str,
    weights: str = FLOAT32,
) -> float:
    """Writes a task's model for another runtime, into a new or empty folder.

    The task's kind has `Kind.runtime`, its BERT is in float32; `form` is a
    key of `RUNTIMES`, `weights` of `LIMITS`. Returns the outputs' greatest
    difference from TensorFlow's, in units of `LIMITS`.
    """
    files.check_new(folder)
    runtime = RUNTIMES[form]
    if task.task.window_stride:
        raise UserError(
            f"{name} reads long texts in windows (window_stride), which a "
            f"file of {runtime.name} cannot; export a SavedModel"
        )
    if task.task.novelty:
        # Not within the model.
        plain = dataclasses.replace(task.task, novelty=None)
        task = dataclasses.replace(task, task=plain)
    model = exact = IdsModel(bert, task)
    if weights == INT8:
        # Converters would give all words one scale, by the greatest value.
        model = IdsModel(bert, task, rounds_words=True)
    if model.size > GREATEST_SIZE:
        raise UserError(
            f"the model has {model.size / 1e9:.1f} GB, but a file of "
            f"{runtime.name} holds less than {GREATEST_SIZE / 1e9:.1f}"
        )
    with files.new_folder(folder) as place:
        files.check_disk_space(place, 2 * model.size)
        path = os.path.join(place, runtime.file)
        with _quiet():
            runtime.convert(model, weights, path)
            run = runtime.load(path)
            difference = compare(exact, run, bert.config, task.max_seq_length)
        if not difference <= LIMITS[weights]:
            raise UserError(
                f"{runtime.name} computes other outputs than TensorFlow: they "
                f"differ by {difference:.2g}, at most {LIMITS[weights]:g} was "
                "expected; nothing was written"
            )
        files.write_text(
            os.path.join(place, TOKENIZER),
            task.tokenizer.to_json(task.max_seq_length, task.task.takes_tokens),
        )
        described = {
            "format": form,
            "weights": weights,
            **_describe(name, task, model),
            "base": bert.base.describe(),
            "difference": difference,
            "versions": {
                "python": sys.version.split()[0],
                "tensorflow": tf.__version__,
                **{
                    package: importlib.metadata.version(package)
                    for package in ("tokenizers", *runtime.packages)
                },
            },
            "files": {
                file: digest(os.path.join(place, file))
                for file in (runtime.file, TOKENIZER)
            },
        }
        files.write_sealed(os.path.join(place, TASK), described)
    return difference


def check_packages(form: str) -> None:
    """Refuses a format whose packages this Python lacks."""
    lacking = [
        name
        for name in RUNTIMES[form].packages
        if importlib.util.find_spec(name) is None
    ]
    if lacking:
        raise UserError(
            f"this Python lacks {', '.join(lacking)}; run `adapter-bert export "
            f"--format={form}`, which goes on in the environment of `make onnx`"
        )


def _describe(name: str, task: LoadedTask, model: IdsModel) -> dict[str, Any]:
    trained = task.task
    of_choices = ["choices"] * bool(trained.choice_count)
    description = {
        **describe(name, task),
        "task": trained.describe_named(),
        "settings": trained.settings,
        "inputs": dict.fromkeys(INPUTS, ["rows", *of_choices, "tokens"]),
        "outputs": {n: list(x) for n, x in model.kind.runtime.items()},
    }
    if trained.questions:
        description["words_of_questions"] = dict(trained.questions)
    return description


def compare(model: IdsModel, run: Run, config: Any, longest: int) -> float:
    """Finds the greatest difference of outputs, in units of `LIMITS`.

    It compares random tokens in batches of several sizes, with padding. NaN
    stands for outputs of other shapes, or that are no numbers.
    """
    rng = np.random.default_rng(0)
    greatest = 0.0
    for rows, length in COMPARED:
        shape = [rows, *model.shape[1:-1], min(length, longest)]
        mask = np.ones(shape, np.int32)
        # The last row has but one token.
        mask[1:, ..., -1] = 0
        mask[-1, ..., 1:] = 0
        batch = {
            "input_ids": rng.integers(config.vocab_size, size=shape),
            "input_mask": mask,
            # A DistilBERT has no segments, and does not look at them.
            "segment_ids": rng.integers(
                config.type_vocab_size or 1, size=shape
            ),
        }
        batch = {key: batch[key].astype(np.int32) for key in INPUTS}
        expected = model.compute(*map(tf.constant, batch.values()))
        outputs = run(batch)
        for name, right in expected.items():
            right = right.numpy()
            if outputs[name].shape != right.shape:
                return float("nan")
            # Logits of padding.
            is_never = right == NEVER
            if not np.array_equal(is_never, outputs[name] == NEVER):
                return float("nan")
            right, other = right[~is_never], outputs[name][~is_never]
            unit = max(1.0, np.abs(right).max())
            greatest = np.maximum(greatest, np.abs(right - other).max() / unit)
    return float(greatest)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # TensorFlow Lite's converter prints tables, and at errors the whole model.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), without_notices(ANYTHING):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _to_tflite(model: IdsModel, weights: str, path: str) -> None:
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [model.compute.get_concrete_function()], model
    )
    if weights == INT8:
        # Without rows to learn ranges from: activations are rounded by the
        # range of each call.
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    try:
        content = converter.convert()
    # The converter's class of errors has no public name.
    except Exception as error:
        lacking = LACKING.search(str(error))
        raise UserError(
            "TensorFlow Lite cannot compute the model: "
            + (
                f"it lacks the operations {lacking.group(1)}"
                if lacking
                else first_line(error)
            )
        ) from error
    files.write_bytes(path, content)


def _load_tflite(path: str) -> Run:
    interpreter = tf.lite.Interpreter(model_path=path)
    runner = interpreter.get_signature_runner()
    return lambda batch: runner(**batch)


def _to_onnx(model: IdsModel, weights: str, path: str) -> None:
    import onnx
    import tf2onnx

    try:
        proto, _ = tf2onnx.convert.from_function(
            model.compute,
            input_signature=model.compute.input_signature,
            opset=OPSET,
        )
        # An operation that cannot be converted stays TensorFlow's.
        onnx.checker.check_model(proto)
    # Of many classes.
    except Exception as error:
        raise UserError(
            f"ONNX cannot express the model: {first_line(error)}"
        ) from error
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.dim_param = "tokens" if axis else "rows"
    if weights == INT8:
        _round_matrices(proto.graph)
    files.write_bytes(path, proto.SerializeToString())


def _round_matrices(graph: Any) -> None:
    """Keeps an ONNX graph's matrices in int8, with a scale for each output.

    ONNX Runtime joins each widening with its product, and rounds activations
    by the range of a few values of one token. Its own `quantize_dynamic` has
    one range for all tokens of a call.
    """
    from onnx import helper, numpy_helper

    factors = {x.input[1] for x in graph.node if x.op_type == "MatMul"}
    for matrix in list(graph.initializer):
        name = matrix.name
        if name not in factors or len(matrix.dims) != 2:
            continue
        values, scale = int8.quantize(name, numpy_helper.to_array(matrix))
        arrays = {f"{name}/values": values, f"{name}/scale": scale[0]}
        graph.initializer.remove(matrix)
        graph.initializer.extend(
            numpy_helper.from_array(array, key) for key, array in arrays.items()
        )
        widening = helper.make_node(
            "DequantizeLinear", [*arrays], [name], axis=1
        )
        graph.node.insert(0, widening)


def _load_onnx(path: str) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda batch: dict(zip(names, session.run(names, dict(batch))))


RUNTIMES = {
    TFLITE: Runtime(
        "TensorFlow Lite", "model.tflite", _to_tflite, _load_tflite
    ),
    ONNX: Runtime(
        "ONNX Runtime", "model.onnx", _to_onnx, _load_onnx, ONNX_PACKAGES
    ),
}
