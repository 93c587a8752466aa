"""Names of google-research/bert's `run_squad.py`.

Answers are cut to whole words, as that program cuts them; `tasks/squad.py` cuts
them to the character. `--version_2_with_negative`,
`--null_score_diff_threshold` and `--verbose_logging` are read where they are
defined and parsed, else they have their defaults.
"""

import collections
import dataclasses
import importlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import tensorflow as tf
from absl import flags

from adapter_bert import files
from adapter_bert.upstream import modeling, records, tokenization

v1 = tf.compat.v1
# The id of the first window; the others count from it.
FIRST_ID = 1000000000
# Windows of so many first questions are told of in the log.
SHOWN = 20


@dataclasses.dataclass(eq=False, repr=False)
class SquadExample:
    """Holds a question about a context, whose words are split at white space.

    `orig_answer_text` is the first answer, "" where there is none;
    `start_position` and `end_position` are its first and last word, or -1.
    """

    qas_id: str
    question_text: str
    doc_tokens: list[str]
    orig_answer_text: Optional[str] = None
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: bool = False

    def __repr__(self):
        shown = {
            "qas_id": self.qas_id,
            "question_text": self.question_text,
            "doc_tokens": f"[{' '.join(self.doc_tokens)}]",
        }
        if self.start_position:
            shown["start_position"] = self.start_position
            shown["end_position"] = self.end_position
            shown["is_impossible"] = self.is_impossible
        return ", ".join(f"{name}: {value}" for name, value in shown.items())


@dataclasses.dataclass(eq=False, repr=False)
class InputFeatures:
    """Holds a window: `[CLS] question [SEP] span [SEP]`, a span of the context.

    Attributes:
        token_to_orig_map: place of a context token -> number of its word.
        token_is_max_context: place of a context token -> whether no other span
            has more text around it.
        input_ids: of the tokens, `max_seq_length` numbers.
        input_mask: 1 for tokens, 0 for padding.
        segment_ids: 1 for the span.
        start_position: of the answer, 0 where the span does not hold it all.
        end_position: like it.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list[str]
    token_to_orig_map: Mapping[int, int]
    token_is_max_context: Mapping[int, bool]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    start_position: Optional[int] = None
    end_position: Optional[int] = None
    is_impossible: Optional[bool] = None


class RawResult(NamedTuple):
    """Holds the logits of a window, one of each for every token."""

    unique_id: int
    start_logits: Sequence[float]
    end_logits: Sequence[float]


class _Span(NamedTuple):
    start: int
    length: int


def _flag(name, default):
    is_defined = name in flags.FLAGS and flags.FLAGS.is_parsed()
    return flags.FLAGS[name].value if is_defined else default


def _allows_none():
    return _flag("version_2_with_negative", False)


def read_squad_examples(input_file, is_training):
    """Reads the questions of a file in SQuAD's layout.

    Questions are left out, with a warning, whose answer is not at its place.

    Raises:
        ValueError: in training, a question that has not just one answer.
    """
    with tf.io.gfile.GFile(input_file, "r") as file:
        articles = json.load(file)["data"]
    examples = []
    for paragraph in (p for a in articles for p in a["paragraphs"]):
        words, word_of = _split(paragraph["context"])
        for qa in paragraph["qas"]:
            answer = ()
            if is_training:
                answer = _find_answer(qa, words, word_of)
            if answer is not None:
                examples.append(
                    SquadExample(qa["id"], qa["question"], words, *answer)
                )
    return examples


def _split(context):
    words = []
    word_of = []
    is_inside = False
    for character in context:
        if character in " \t\r\n\u202f":
            is_inside = False
        elif is_inside:
            words[-1] += character
        else:
            words.append(character)
            is_inside = True
        word_of.append(len(words) - 1)
    return words, word_of


def _find_answer(qa, words, word_of):
    if _allows_none() and qa["is_impossible"]:
        return "", -1, -1, True
    if len(qa["answers"]) != 1:
        raise ValueError(
            f"question {qa['id']!r} has {len(qa['answers'])} answers; for "
            "training each question needs exactly one"
        )
    (answer,) = qa["answers"]
    text, place = answer["text"], answer["answer_start"]
    start, end = word_of[place], word_of[place + len(text) - 1]
    context = " ".join(words[start : end + 1])
    if " ".join(text.split()) not in context:
        v1.logging.warning(
            "Could not find answer: '%s' vs. '%s'", context, text
        )
        return None
    return text, start, end


def convert_examples_to_features(
    examples,
    tokenizer,
    max_seq_length,
    doc_stride,
    max_query_length,
    is_training,
    output_fn,
):
    """Hands each window of each question to `output_fn`.

    Lengths and `doc_stride`, the distance of a context's windows, are in
    tokens.

    Raises:
        ValueError: a window without room for the context, or a stride below 1.
    """
    unique_id = FIRST_ID
    for number, example in enumerate(examples):
        query = tokenizer.tokenize(example.question_text)[:max_query_length]
        pieces = [tokenizer.tokenize(word) for word in example.doc_tokens]
        tokens = [piece for word in pieces for piece in word]
        word_of = [n for n, word in enumerate(pieces) for _ in word]
        answer = None
        if is_training and not example.is_impossible:
            first_of = [0, *itertools.accumulate(map(len, pieces))]
            answer = _improve_answer_span(
                tokens,
                first_of[example.start_position],
                first_of[example.end_position + 1] - 1,
                tokenizer,
                example.orig_answer_text,
            )
        room = max_seq_length - len(query) - 3
        if room < 1 or doc_stride < 1:
            raise ValueError(
                f"max_seq_length is {max_seq_length} and doc_stride is "
                f"{doc_stride}, expected at least {len(query) + 4} "
                f"({len(query)} tokens of the question {example.qas_id!r} and "
                "4 more) and at least 1"
            )
        # Until one reaches the end; none of an empty context.
        step, count = min(room, doc_stride), len(tokens)
        last = max(count - room, 0) + step if tokens else 0
        spans = [
            _Span(first, min(room, count - first))
            for first in range(0, last, step)
        ]
        for span_number, span in enumerate(spans):
            places = range(span.start, span.start + span.length)
            row, numbers = records.make_row(
                tokenizer,
                list(query),
                [tokens[place] for place in places],
                max_seq_length,
            )
            # Of the part's first token in the row, less that in the context.
            shift = len(query) + 2 - span.start
            features = InputFeatures(
                unique_id,
                number,
                span_number,
                row,
                {place + shift: word_of[place] for place in places},
                {
                    place + shift: _check_is_max_context(
                        spans, span_number, place
                    )
                    for place in places
                },
                *numbers,
                is_impossible=example.is_impossible,
            )
            if is_training:
                is_whole = answer and all(place in places for place in answer)
                features.start_position, features.end_position = (
                    (answer[0] + shift, answer[1] + shift)
                    if is_whole
                    else (0, 0)
                )
            if number < SHOWN:
                v1.logging.info(
                    "*** Example ***\n%s",
                    "\n".join(f"{k}: {v}" for k, v in vars(features).items()),
                )
            output_fn(features)
            unique_id += 1


def _improve_answer_span(
    doc_tokens,
    input_start,
    input_end,
    tokenizer,
    orig_answer_text,
):
    answer = tokenizer.tokenize(orig_answer_text)
    for start in range(input_start, input_end + 1):
        end = start + len(answer)
        if answer and end <= input_end + 1 and doc_tokens[start:end] == answer:
            return start, end - 1
    return input_start, input_end


def _check_is_max_context(doc_spans, cur_span_index, position):
    scores = []
    for span in doc_spans:
        left = position - span.start
        right = span.start + span.length - 1 - position
        is_inside = left >= 0 and right >= 0
        score = min(left, right) + 0.01 * span.length
        scores.append(score if is_inside else -1.0)
    return cur_span_index == scores.index(max(scores))


def create_model(
    bert_config,
    is_training,
    input_ids,
    input_mask,
    segment_ids,
    use_one_hot_embeddings,
    tuning_method=None,
):
    """Makes start and end logits of every token, padding too, float32 [B, T].

    Arguments are those of `modeling.BertModel`.
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
    read = model.get_sequence_output()
    weights, bias = modeling.head_variables(
        "cls/squad/output_weights", "cls/squad/output_bias", 2, read.shape[-1]
    )
    batch, length, _ = modeling.get_shape_list(read, expected_rank=3)
    logits = tf.matmul(
        modeling.reshape_to_matrix(read), weights, transpose_b=True
    )
    logits = tf.reshape(tf.nn.bias_add(logits, bias), [batch, length, 2])
    starts, ends = tf.unstack(logits, axis=2)
    return starts, ends


def model_fn_builder(
    bert_config,
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
        """Raises ValueError in another mode than training and prediction."""
        del labels, params
        modeling.log_features(features)
        if mode not in (modeling.ModeKeys.TRAIN, modeling.ModeKeys.PREDICT):
            raise ValueError(f"the mode is {mode}, expected TRAIN or PREDICT")
        logits = create_model(
            bert_config,
            mode == modeling.ModeKeys.TRAIN,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            use_one_hot_embeddings,
            tuning_method,
        )
        loss = None
        if mode == modeling.ModeKeys.TRAIN:
            losses = [
                tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(
                        labels=features[f"{side}_positions"], logits=values
                    )
                )
                for side, values in zip(("start", "end"), logits)
            ]
            loss = (losses[0] + losses[1]) / 2.0
        return modeling.make_spec(
            mode,
            init_checkpoint,
            [learning_rate, num_train_steps, num_warmup_steps, use_tpu],
            loss,
            {
                "unique_ids": features["unique_ids"],
                "start_logits": logits[0],
                "end_logits": logits[1],
            },
        )

    return model_fn


def input_fn_builder(input_file, seq_length, is_training, drop_remainder):
    """Makes an `input_fn` over what `FeatureWriter` wrote."""
    shapes = {
        "unique_ids": [],
        "input_ids": [seq_length],
        "input_mask": [seq_length],
        "segment_ids": [seq_length],
    }
    if is_training:
        shapes.update(start_positions=[], end_positions=[])
    return records.record_input_fn(
        input_file, shapes, is_training, drop_remainder
    )


class FeatureWriter:
    """Writes windows to a TFRecord file; `num_features` were written."""

    def __init__(self, filename, is_training):
        self.filename = filename
        self.is_training = is_training
        self.num_features = 0
        self._writer = tf.io.TFRecordWriter(filename)

    def process_feature(self, feature):
        self.num_features += 1
        values = {
            "unique_ids": [feature.unique_id],
            "input_ids": feature.input_ids,
            "input_mask": feature.input_mask,
            "segment_ids": feature.segment_ids,
        }
        if self.is_training:
            values["start_positions"] = [feature.start_position]
            values["end_positions"] = [feature.end_position]
            values["is_impossible"] = [int(bool(feature.is_impossible))]
        records.write_numbers(self._writer, values)

    def close(self):
        self._writer.close()


def write_predictions(
    all_examples,
    all_features,
    all_results,
    n_best_size,
    max_answer_length,
    do_lower_case,
    output_prediction_file,
    output_nbest_file,
    output_null_log_odds_file,
):
    """Writes answers, candidates and, for SQuAD 2.0, null odds as JSON.

    `output_prediction_file` has id -> answer, `output_nbest_file` id ->
    candidates with probability and logits. `max_answer_length` is in tokens.
    """
    windows = collections.defaultdict(list)
    for feature in all_features:
        windows[feature.example_index].append(feature)
    results = {result.unique_id: result for result in all_results}
    answers, candidates, odds = {}, {}, {}
    for number, example in enumerate(all_examples):
        best, null = _best_texts(
            example,
            windows[number],
            results,
            n_best_size,
            max_answer_length,
            do_lower_case,
        )
        name = example.qas_id
        shares = _compute_softmax([start + end for start, end in best.values()])
        candidates[name] = [
            {
                "text": text,
                "probability": share,
                "start_logit": start,
                "end_logit": end,
            }
            for (text, (start, end)), share in zip(best.items(), shares)
        ]
        answers[name] = next(iter(best))
        if null is not None:
            answers[name] = next((text for text in best if text), "")
            start, end = best.get(answers[name], (0.0, 0.0))
            odds[name] = sum(null) - start - end
            if odds[name] > _flag("null_score_diff_threshold", 0.0):
                answers[name] = ""
    contents = {
        output_prediction_file: answers,
        output_nbest_file: candidates,
    }
    if _allows_none():
        contents[output_null_log_odds_file] = odds
    for path, content in contents.items():
        text = json.dumps(content, indent=4) + "\n"
        files.write_bytes(path, text.encode())


def _best_texts(
    example, features, results, n_best_size, max_answer_length, do_lower_case
):
    spans, nulls = [], []
    for feature in features:
        result = results[feature.unique_id]
        starts, ends = result.start_logits, result.end_logits
        nulls.append((starts[0], ends[0]))
        spans += [
            ((starts[start], ends[end]), feature, start, end)
            for start in _get_best_indexes(starts, n_best_size)
            for end in _get_best_indexes(ends, n_best_size)
            if feature.token_is_max_context.get(start, False)
            and end in feature.token_to_orig_map
            and start <= end < start + max_answer_length
        ]
    null = None
    if _allows_none():
        null = min(nulls, key=sum, default=(0.0, 0.0))
        spans.append((null, None, 0, 0))
    best = {}
    for logits, feature, start, end in sorted(
        spans, key=lambda span: sum(span[0]), reverse=True
    ):
        if len(best) >= n_best_size:
            break
        text = ""
        if feature is not None:
            pieces = " ".join(feature.tokens[start : end + 1])
            pieces = pieces.replace(" ##", "").replace("##", "")
            words = feature.token_to_orig_map
            text = get_final_text(
                " ".join(pieces.split()),
                " ".join(example.doc_tokens[words[start] : words[end] + 1]),
                do_lower_case,
            )
        best.setdefault(text, logits)
    if null is not None:
        best.setdefault("", null)
    # In rare cases nothing is allowed.
    return best or {"empty": (0.0, 0.0)}, null


def get_final_text(pred_text, orig_text, do_lower_case):
    """Finds the piece of a text whose words, tokenized, are a prediction's.

    Gives all of `orig_text` where the letters of both do not match one for one.
    """
    tokenizer = tokenization.BasicTokenizer(do_lower_case)
    text = " ".join(tokenizer.tokenize(orig_text))
    place = text.find(pred_text)
    letters = [n for n, letter in enumerate(orig_text) if letter != " "]
    if place < 0 or len(letters) != len(text.replace(" ", "")):
        if _flag("verbose_logging", False):
            v1.logging.info("Unable to find '%s' in '%s'", pred_text, orig_text)
        return orig_text
    before = len(re.sub(" ", "", text[:place]))
    count = len(re.sub(" ", "", pred_text))
    if not count:
        return orig_text
    return orig_text[letters[before] : letters[before + count - 1] + 1]


def _get_best_indexes(logits, n_best_size):
    order = sorted(range(len(logits)), key=lambda n: logits[n], reverse=True)
    return order[:n_best_size]


def _compute_softmax(scores):
    if not scores:
        return []
    most = max(scores)
    shares = [math.exp(score - most) for score in scores]
    total = sum(shares)
    return [share / total for share in shares]


def validate_flags_or_throw(bert_config):
    """Compares the flags with one another and with the model.

    Raises:
        ValueError: flags that do not fit.
    """
    tokenization.validate_case_matches_checkpoint(
        _flag("do_lower_case", True), _flag("init_checkpoint", None)
    )
    to_do = {
        "do_train": "train_file",
        "do_predict": "predict_file",
    }
    if not any(_flag(name, False) for name in to_do):
        raise ValueError(f"expected one of {', '.join(to_do)}, found none")
    for name, file in to_do.items():
        if _flag(name, False) and not _flag(file, None):
            raise ValueError(f"{name} needs {file}, found none")
    length = _flag("max_seq_length", 384)
    least = _flag("max_query_length", 64) + 4
    most = bert_config.max_position_embeddings
    if not least <= length <= most:
        raise ValueError(
            f"max_seq_length is {length}, expected {least} (max_query_length "
            f"and 4 more) to {most} (max_position_embeddings)"
        )


def main(_=None):
    """Runs the program by the command line's flags; raises SystemExit."""
    # The program stands above this room.
    importlib.import_module("adapter_bert.commands").run("run_squad")
