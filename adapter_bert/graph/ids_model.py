"""Model of one task from token ids to its outputs, for other runtimes.

Unlike `text_model.py` it has neither texts nor tables of tasks, and takes tasks
that change BERT's matrices too.
"""

import functools

import tensorflow as tf

from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask
from adapter_bert.bert import functional, int8
from adapter_bert.bert.encoder import WORD_EMBEDDINGS, Quantized
from adapter_bert.bert.hooks import Context
from adapter_bert.errors import UserError
from adapter_bert.tasks.task_model import TaskModel

# Inputs in the order of the function's arguments.
INPUTS = ("input_ids", "input_mask", "segment_ids")


class IdsModel(tf.Module):
    """Computes a task's outputs.

    Attributes:
        shape: of each input, None for sizes that are known at a call.
        compute: a `tf.function` of `INPUTS`, int32 [N, T], or of C choices
            [N, C, T]. Gives the outputs of `Kind.runtime`, float32.
    """

    def __init__(
        self, bert: FrozenBert, task: LoadedTask, rounds_words: bool = False
    ):
        """Takes the values of BERT, in float32, and of a task.

        With `rounds_words` word embeddings, as the method gives them, are kept
        in int8 with a scale for each word.
        """
        super().__init__()
        self.kind = task.task.kind
        if not self.kind.runtime:
            raise UserError(
                f"{task.task.name} is of the kind {self.kind.name}, which "
                "cannot be exported"
            )
        kept = bert.variables.values()
        is_int8 = any(isinstance(value, Quantized) for value in kept)
        if is_int8 or bert.compute_dtype != tf.float32:
            raise UserError(
                "BERT is in int8 or bfloat16, but files of other runtimes are "
                "made of one in float32; open it with --base_dtype=float32 and "
                "--compute_dtype=float32"
            )
        self._task, self._config = task.task, bert.config
        values = dict(bert.variables)
        for name, value in task.values.get().items():
            values[name] = tf.Variable(value, trainable=False)
        make_model = functools.partial(
            TaskModel,
            bert.config,
            task.kind.method,
            task.task.build_head,
            lambda name, *_: values.get(name),
        )
        self._model = make_model()
        if rounds_words:
            # No batch changes what is read.
            context = Context(tf.ones([1, 1], tf.int32))
            words = self._model.bert.read(WORD_EMBEDDINGS, context)
            values[WORD_EMBEDDINGS] = int8.make_variables(
                WORD_EMBEDDINGS, words.numpy()
            )
            self._model = make_model()
        self._values = values
        self.shape = [None, None]
        if choices := task.task.choice_count:
            self.shape.insert(1, choices)
        self.compute = tf.function(
            self._compute,
            input_signature=[
                tf.TensorSpec(self.shape, tf.int32, name) for name in INPUTS
            ],
            autograph=False,
        )

    @property
    def size(self) -> int:
        return sum(v.dtype.size * int(tf.size(v)) for v in self.variables)

    def _compute(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        rows = tf.shape(input_ids)[0]
        ids, mask, segments = (
            tf.reshape(x, [-1, tf.shape(x)[-1]])
            for x in (input_ids, input_mask, segment_ids)
        )
        model = self._model
        context = Context(
            mask,
            first_token=model.head.reads_first_token
            and model.bert.hooks.by_token,
        )
        with functional.for_runtimes():
            states = model.bert(ids, segments, context).sequence_output
            # What the head selects for answers here is not computed.
            outputs = model.head(model.bert, states, context)
        return self._task.runtime_outputs(outputs, rows)
