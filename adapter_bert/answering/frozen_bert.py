"""One BERT in memory, and functions that compute any trained task on it.

An adapter's trained values are arguments of the computation. So adapters of one
kind share one function, and adding or removing one builds nothing.
"""

import ctypes
import dataclasses
import functools
import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from adapter_bert.bert import encoder, int8, onednn
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.bert.hooks import NamedTensors
from adapter_bert.checkpoints import sources
from adapter_bert.checkpoints.changed_weights import rounded_to_int8
from adapter_bert.checkpoints.weights import (
    Base,
    Pretrained,
    Weights,
    check_shape,
    identify,
)
from adapter_bert.data.added_tokens import NewToken
from adapter_bert.data.huggingface_tokenizer import SubwordTokenizer
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import task_model
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.task_model import BuildHead, ParameterTable, TaskModel
from adapter_bert.tasks.vector_form import Pooled
from adapter_bert.training import devices, training_step
from adapter_bert.training.fastest_dtype import choose_dtype
from adapter_bert.training.settings import FLOAT32, INT8, Hardware

Values = Mapping[str, tf.Tensor]
Batch = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TaskKind:
    """Adapters of one kind: one method, form of head and list of variables.

    Equal kinds have equal keys. `function` computes any of the adapters.
    """

    key: Hashable
    method: TuningMethod
    build_head: BuildHead
    head_kind: Hashable
    table: ParameterTable
    function: Any

    def compute(self, values: Values, batch: Batch) -> NamedTensors:
        """Gives the head's outputs [B, ...] by name.

        `values` are float32, of all trained and added variables.
        """
        # A plain call warns: it takes many kinds for one that is retraced.
        return self.function.get_concrete_function()(values, batch)


class FrozenBert:
    """A pretrained BERT, whose variables exist once.

    Attributes:
        opened: what its own files say.
        weights: what it was read from.
        base: which BERT it is.
        pooled: how its vectors are made, as its folder says, or None.
        variables: by name; kernels in the type of products, others float32.
            Matrices may be in int8, as `Quantized`.
    """

    def __init__(
        self,
        opened: Pretrained,
        config: BertConfig,
        read_tokenizer: Callable[..., TextTokenizer],
        do_lower_case: Optional[bool],
        compute_dtype: str,
        base_dtype: str,
    ):
        """Reads every variable; other arguments are those of `open`.

        `read_tokenizer` takes the last three arguments of
        `sources.read_tokenizer`.
        """
        self.config, self.opened = config, opened
        self._read_tokenizer = read_tokenizer
        self._do_lower_case = do_lower_case
        variables = encoder.list_variables(config)
        self.base: Base = identify(opened.weights, variables)
        self.weights: Weights = opened.weights
        self.pooled: Optional[Pooled] = opened.pooled
        self._in_int8: frozenset[str] = frozenset()
        if base_dtype == INT8:
            self._in_int8 = int8.names(variables)
            self.weights = rounded_to_int8(opened.weights, self._in_int8)
        hardware = Hardware()
        # Threads first: nothing may have run before.
        lanes = devices.use_lanes(hardware)
        compute_dtype = choose_dtype(compute_dtype)
        self._prediction = training_step.Prediction(
            lanes,
            use_onednn=onednn.is_available(compute_dtype),
            compute_dtype=compute_dtype,
        )
        devices.choose_graph_optimizer(hardware, compute_dtype)
        if compute_dtype == "float32":
            _map_large_blocks()
        self.variables = {
            name: self._read(name, self._kept_as(name))
            for name in variables
            if name in opened.weights.shapes
        }
        self._whole_kernels: dict[str, tf.Variable] = {}
        self._tokenizers: dict[Optional[bool], TextTokenizer] = {}
        self._kinds: dict[Hashable, TaskKind] = {}
        self._functions: dict[Hashable, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        init_checkpoint: str,
        bert_config_file: str = "",
        vocab_file: str = "",
        compute_dtype: str = "float32",
        do_lower_case: Optional[bool] = None,
        base_dtype: str = FLOAT32,
    ) -> "FrozenBert":
        """Opens what `--init_checkpoint` names; arguments as the flags."""
        opened = sources.open_untrained(init_checkpoint)
        config = sources.read_config(opened, bert_config_file)
        read_tokenizer = functools.partial(
            sources.read_tokenizer, opened, config, vocab_file
        )
        bert = cls(
            opened,
            config,
            read_tokenizer,
            do_lower_case,
            compute_dtype,
            base_dtype,
        )
        # So that a bad vocabulary is found now. Adapters say the letters' case,
        # whatever the model's files say.
        read = read_tokenizer(do_lower_case, is_case_said=False)
        bert._tokenizers[read.do_lower_case] = read
        return bert

    def tokenizer(
        self,
        do_lower_case: Optional[bool] = None,
        new_tokens: Sequence[NewToken] = (),
    ) -> TextTokenizer:
        """Gives its tokenizer, with a task's own tokens.

        None stands for the letters' case that BERT was opened with, else what
        its own files say, else what the vocabulary's words tell.
        """
        if do_lower_case is None:
            do_lower_case = self._do_lower_case
        if any(
            isinstance(one, SubwordTokenizer)
            for one in list(self._tokenizers.values())
        ):
            do_lower_case = False  # It has one tokenizer, whatever is asked.
        if new_tokens:
            # Of the task alone, so that it goes when the task does.
            return self._read_tokenizer(do_lower_case, new_tokens)
        with self._lock:
            if do_lower_case not in self._tokenizers:
                read = self._read_tokenizer(do_lower_case)
                read = self._tokenizers.setdefault(read.do_lower_case, read)
                self._tokenizers[do_lower_case] = read
            return self._tokenizers[do_lower_case]

    def kind(self, method: TuningMethod, task: Task) -> TaskKind:
        """Finds the kind of a task that was trained by a method."""
        table = task_model.list_parameters(self.config, method, task.build_head)
        if self._in_int8:
            task_model.int8_variables(table)
        shapes = tuple((p.name, p.shape) for p in table.parameters)
        key = (str(method), task.head_kind, shapes)
        with self._lock:
            if key not in self._kinds:
                for p in table.parameters:
                    if not (p.trained or p.is_added):
                        check_shape(self.weights, p.name, p.shape)
                function = self.function(
                    ("answers", key),
                    table,
                    functools.partial(
                        TaskModel, self.config, method, task.build_head
                    ),
                )
                head = task.build_head, task.head_kind
                self._kinds[key] = TaskKind(key, method, *head, table, function)
            return self._kinds[key]

    def function(
        self,
        key: Hashable,
        table: ParameterTable,
        make_model: Callable,
        more: Optional[Mapping[str, tf.TensorSpec]] = None,
    ) -> Any:
        """Gives a `tf.function` of a model on BERT's variables, traced once.

        Args:
            key: of the model; equal keys share a function.
            table: declares the values that the function takes before a batch.
            make_model: makes a model for `predict` from a `CreateVariable`.
            more: features [B, ...] of a batch, next to what every batch has.
        """
        with self._lock:
            if key not in self._functions:
                made = self._make_function(table, make_model, more or {})
                self._functions[key] = made
            return self._functions[key]

    @property
    def compute_dtype(self) -> tf.DType:
        """Type of products and activations."""
        return tf.as_dtype(self._prediction.compute_dtype)

    def predict(self, model: Callable, batch: Batch) -> NamedTensors:
        """Computes a model's outputs for a batch, which the cores share."""
        return training_step.predict(self._prediction, model, batch)

    def _kept_as(self, name: str) -> tf.DType:
        is_kernel = task_model.KERNEL.fullmatch(name) and "/kernel" in name
        return self.compute_dtype if is_kernel else tf.float32

    def _read(self, name: str, dtype: tf.DType) -> Any:
        value = self.weights.read(name)
        if name in self._in_int8:
            return int8.make_variables(name, value)
        return tf.Variable(tf.cast(value, dtype), trainable=False)

    def _variables_for(self, table: ParameterTable) -> Values:
        # Methods that add to kernels need unrounded ones, which are read when
        # the first such method comes.
        if "parameter" not in table.hooks.places:
            return self.variables
        if not self._whole_kernels:
            self._whole_kernels = {
                name: self._read(name, tf.float32)
                for name, variable in self.variables.items()
                if variable.dtype != tf.float32
            }
        return {**self.variables, **self._whole_kernels}

    def _make_function(
        self,
        table: ParameterTable,
        make_model: Callable,
        more: Mapping[str, tf.TensorSpec],
    ) -> Any:
        variables = self._variables_for(table)
        numbers = tf.TensorSpec([None, None], tf.int32)
        batch_signature = {
            "input_ids": numbers,
            "input_mask": numbers,
            "segment_ids": numbers,
            "row": tf.TensorSpec([None], tf.int32),
            **more,
        }
        values_signature = {
            p.name: tf.TensorSpec(p.shape, tf.float32)
            for p in table.parameters
            if p.trained or p.is_added
        }

        @tf.function(
            input_signature=[values_signature, batch_signature], autograph=False
        )
        def compute(values, batch):
            def create(name, *_):
                value = values.get(name)
                return variables[name] if value is None else value

            return self.predict(make_model(create), batch)

        return compute


def _map_large_blocks() -> None:
    """Has glibc return freed blocks of 128 KiB and more, in this process.

    It learns from the first freed blocks to keep larger ones, and batches of
    other lengths leave gaps between those. In bfloat16 that saves nothing.
    """
    mmap_threshold = -3
    # Other C libraries have no such function.
    set_option = os.name == "posix" and getattr(
        ctypes.CDLL(None), "mallopt", None
    )
    if set_option:
        set_option(mmap_threshold, 128 << 10)
