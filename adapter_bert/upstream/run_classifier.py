"""Names of google-research/bert's `run_classifier.py`.

`create_model` and `model_fn_builder` take `tuning_method` as well, as
`modeling.BertModel`. `main` runs the program `run_classifier`.
"""

import csv
import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from adapter_bert.data.tables import Layout
from adapter_bert.upstream import modeling, records

v1 = tf.compat.v1
# An example is told of in the log, of so many first ones.
SHOWN = 5
# How many examples are converted between two lines in the log.
REPORTED = 10000


@dataclasses.dataclass(eq=False, repr=False)
class InputExample:
    """Holds a row of a table: one text or two, and a label, None in a test set.

    `guid` is unique within its split.
    """

    guid: str
    text_a: str
    text_b: Optional[str] = None
    label: Optional[str] = None


class PaddingInputExample:
    """Fills the last batch of a TPU; in no score and no prediction."""


@dataclasses.dataclass(eq=False, repr=False)
class InputFeatures:
    """Holds what the model reads of an example, `max_seq_length` numbers each.

    `input_mask` is 1 for tokens, `segment_ids` are 1 for the second text,
    `label_id` is the label's place. `is_real_example` is False of a
    `PaddingInputExample`.
    """

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: int
    is_real_example: bool = True


class DataProcessor:
    """Reads the examples of a task; a subclass declares one."""

    def get_train_examples(self, data_dir):
        raise NotImplementedError()

    def get_dev_examples(self, data_dir):
        raise NotImplementedError()

    def get_test_examples(self, data_dir):
        raise NotImplementedError()

    def get_labels(self):
        raise NotImplementedError()

    @classmethod
    def _read_tsv(cls, input_file, quotechar=None):
        with tf.io.gfile.GFile(input_file, "r") as file:
            return list(csv.reader(file, delimiter="\t", quotechar=quotechar))


class _TableProcessor(DataProcessor):
    labels: Sequence[str] = ("0", "1")
    labelled: Layout
    # Of the test set, whose labels are the task's first one.
    unlabelled: Layout
    # Which of a task's several dev and test sets these are.
    which = ""
    # The column that names an example, or None for its line number.
    guid: Optional[int] = None

    def get_train_examples(self, data_dir):
        return self._read(data_dir, "train")

    def get_dev_examples(self, data_dir):
        return self._read(data_dir, "dev")

    def get_test_examples(self, data_dir):
        return self._read(data_dir, "test")

    def get_labels(self):
        return list(self.labels)

    def _read(self, data_dir, split):
        name = split if split == "train" else f"{split}{self.which}"
        lines = self._read_tsv(os.path.join(data_dir, f"{name}.tsv"))
        # As in upstream's MNLI, whose guids say which development set.
        prefix = split if split == "test" else name
        return self._create_examples(lines, prefix)

    def _create_examples(self, lines, set_type):
        is_test = set_type == "test"
        layout = self.unlabelled if is_test else self.labelled
        guid = self.guid
        return [
            InputExample(
                guid=f"{set_type}-{n if guid is None else line[guid]}",
                text_a=line[layout.text_a],
                text_b=None if layout.text_b is None else line[layout.text_b],
                label=self.labels[0] if is_test else line[layout.label],
            )
            for n, line in enumerate(lines)
            if n or not layout.header
        ]


class MnliProcessor(_TableProcessor):
    """MultiNLI, as GLUE has it."""

    labels = ("contradiction", "entailment", "neutral")
    labelled, unlabelled = Layout(8, 9, -1), Layout(8, 9)
    which = "_matched"
    guid = 0


class MrpcProcessor(_TableProcessor):
    """Reads the Microsoft Research Paraphrase Corpus, as GLUE has it."""

    labelled, unlabelled = Layout(3, 4, 0), Layout(3, 4)


class ColaProcessor(_TableProcessor):
    """Reads the Corpus of Linguistic Acceptability, as GLUE has it."""

    labelled, unlabelled = Layout(3, label=1, header=False), Layout(1)


class XnliProcessor(DataProcessor):
    """Reads XNLI in one language, without a test set."""

    def __init__(self):
        self.language = "zh"

    def get_train_examples(self, data_dir):
        path = f"multinli/multinli.train.{self.language}.tsv"
        return [
            InputExample(
                f"train-{number}",
                line[0],
                line[1],
                # So these files call it.
                line[2].replace("contradictory", "contradiction"),
            )
            for number, line in self._lines(data_dir, path)
        ]

    def get_dev_examples(self, data_dir):
        return [
            InputExample(f"dev-{number}", line[6], line[7], line[1])
            for number, line in self._lines(data_dir, "xnli.dev.tsv")
            if line[0] == self.language
        ]

    def get_labels(self):
        return ["contradiction", "entailment", "neutral"]

    def _lines(self, data_dir, path):
        lines = self._read_tsv(os.path.join(data_dir, path))
        return list(enumerate(lines))[1:]


def convert_single_example(
    ex_index,
    example,
    label_list,
    max_seq_length,
    tokenizer,
):
    """Makes the features of an example; the first ones are logged.

    `label_list` is in the order of the logits. Raises KeyError for another
    label.
    """
    if isinstance(example, PaddingInputExample):
        zeros = ([0] * max_seq_length for _ in range(3))
        return InputFeatures(*zeros, label_id=0, is_real_example=False)
    tokens, numbers = records.make_row(
        tokenizer,
        tokenizer.tokenize(example.text_a),
        tokenizer.tokenize(example.text_b) if example.text_b else None,
        max_seq_length,
    )
    label_id = {label: n for n, label in enumerate(label_list)}[example.label]
    if ex_index < SHOWN:
        v1.logging.info("*** Example ***")
        v1.logging.info("guid: %s", example.guid)
        v1.logging.info("tokens: %s", " ".join(tokens))
        for name, row in zip(
            ("input_ids", "input_mask", "segment_ids"), numbers
        ):
            v1.logging.info("%s: %s", name, " ".join(map(str, row)))
        v1.logging.info("label: %s (id = %d)", example.label, label_id)
    return InputFeatures(*numbers, label_id=label_id)


def convert_examples_to_features(
    examples,
    label_list,
    max_seq_length,
    tokenizer,
):
    """Makes the features of each example, as `convert_single_example`."""
    return list(_features(examples, label_list, max_seq_length, tokenizer))


def _features(examples, *arguments):
    for number, example in enumerate(examples):
        if number % REPORTED == 0:
            v1.logging.info("Writing example %d of %d", number, len(examples))
        yield convert_single_example(number, example, *arguments)


def file_based_convert_examples_to_features(
    examples,
    label_list,
    max_seq_length,
    tokenizer,
    output_file,
):
    """Writes the features of each example to a TFRecord file."""
    with tf.io.TFRecordWriter(output_file) as writer:
        for one in _features(examples, label_list, max_seq_length, tokenizer):
            numbers = {**vars(one), "label_ids": [one.label_id]}
            del numbers["label_id"]
            numbers["is_real_example"] = [int(one.is_real_example)]
            records.write_numbers(writer, numbers)


def file_based_input_fn_builder(
    input_file, seq_length, is_training, drop_remainder
):
    """Makes an `input_fn` over what `file_based_convert_...` wrote."""
    row = [seq_length]
    shapes = {
        "input_ids": row,
        "input_mask": row,
        "segment_ids": row,
        "label_ids": [],
        "is_real_example": [],
    }
    return records.record_input_fn(
        input_file, shapes, is_training, drop_remainder
    )


def input_fn_builder(
    features,
    seq_length,
    is_training,
    drop_remainder,
):
    """Makes an `input_fn` over features in memory."""
    del seq_length
    return records.memory_input_fn(
        {
            "input_ids": [f.input_ids for f in features],
            "input_mask": [f.input_mask for f in features],
            "segment_ids": [f.segment_ids for f in features],
            "label_ids": [f.label_id for f in features],
        },
        is_training,
        drop_remainder,
    )


_truncate_seq_pair = records.truncate_pair


def create_model(
    bert_config,
    is_training,
    input_ids,
    input_mask,
    segment_ids,
    labels,
    num_labels,
    use_one_hot_embeddings,
    tuning_method=None,
):
    """Makes a classifier on the pooled output of a `modeling.BertModel`.

    Args:
        labels: int32 [B].
        num_labels: C.

    Returns:
        The loss, float32 []; each example's, [B]; logits [B, C]; and
        probabilities [B, C].
    """
    model = modeling.BertModel(
        bert_config,
        is_training,
        input_ids,
        input_mask,
        segment_ids,
        use_one_hot_embeddings,
        tuning_method=tuning_method,
    )
    read = model.get_pooled_output()
    weights, bias = modeling.head_variables(
        "output_weights", "output_bias", num_labels, read.shape[-1]
    )
    with v1.variable_scope("loss"):
        if is_training:
            read = tf.nn.dropout(read, rate=0.1)
        logits = tf.nn.bias_add(
            tf.matmul(read, weights, transpose_b=True), bias
        )
        probabilities = tf.nn.softmax(logits, axis=-1)
        log_probabilities = tf.nn.log_softmax(logits, axis=-1)
        one_hot = tf.one_hot(labels, num_labels, dtype=tf.float32)
        losses = -tf.reduce_sum(one_hot * log_probabilities, axis=-1)
        return tf.reduce_mean(losses), losses, logits, probabilities


def model_fn_builder(
    bert_config,
    num_labels,
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    use_one_hot_embeddings,
    tuning_method=None,
):
    """Makes a `model_fn` for TPUEstimator; arguments of `create_model`."""

    def model_fn(features, labels, mode, params):
        del labels, params
        modeling.log_features(features)
        label_ids = features["label_ids"]
        is_real = tf.ones_like(label_ids, tf.float32)
        if "is_real_example" in features:
            is_real = tf.cast(features["is_real_example"], tf.float32)
        loss, losses, logits, probabilities = create_model(
            bert_config,
            mode == modeling.ModeKeys.TRAIN,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            label_ids,
            num_labels,
            use_one_hot_embeddings,
            tuning_method,
        )
        return modeling.make_spec(
            mode,
            init_checkpoint,
            [learning_rate, num_train_steps, num_warmup_steps, use_tpu],
            loss,
            {"probabilities": probabilities},
            (_metrics, [losses, label_ids, logits, is_real]),
        )

    return model_fn


def _metrics(losses, label_ids, logits, is_real):
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": v1.metrics.accuracy(
            labels=label_ids, predictions=predictions, weights=is_real
        ),
        "eval_loss": v1.metrics.mean(values=losses, weights=is_real),
    }


def main(
    _=None,
    processors=None,
):
    """Runs the program by the command line's flags; raises SystemExit.

    `processors` make processors, by the name that `--task_name` takes; the
    program's own tasks are there too.
    """
    # The program stands above this room.
    commands = importlib.import_module("adapter_bert.commands")
    commands.run("run_classifier", processors=processors or {})
