"""Vectors of texts: hidden states of BERT, alone or with a trained adapter.

from adapter_bert.answering.embeddings import embed

bert = FrozenBert.open("bert_base")
task = load_task(bert, "out/mrpc/adapter", None)
embed(bert, ["He sat down.", "He took a seat."], task=task)  # float32 [2, D]
"""

import dataclasses
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.joint_answers import in_batches
from adapter_bert.answering.row_stream import chunks
from adapter_bert.answering.trained_task import (
    LoadedTask,
    TextRow,
    as_row,
    check_text,
)
from adapter_bert.bert.config import BertConfig
from adapter_bert.bert.encoder import CreateVariable
from adapter_bert.bert.hooks import Context, NamedTensors
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Texts
from adapter_bert.data.tokenization import TextTokenizer, join_texts
from adapter_bert.errors import UserError
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.fine_tuning import HeadOnly
from adapter_bert.tasks import vectors as vector_task
from adapter_bert.tasks.task_model import ParameterTable, TaskModel
from adapter_bert.tasks.vector_form import (
    CLS,
    MEAN,
    TOKENS,
    Dense,
    Pooled,
    apply_layers,
    constants,
    create_layers,
    pool,
)
from adapter_bert.training.prediction import check_finite

POOLINGS = (CLS, MEAN, TOKENS)
# The pooling of the adapter's training, else of BERT's folder.
TRAINED = "trained"
# Stands for a head where hidden states are read.
NO_HEAD = types.SimpleNamespace(needs_pooler=False, sides=())
# Squared lengths below count as this one, so that zeros stay zeros.
SMALLEST = 1e-24


class TokenVectors(NamedTuple):
    """A row's tokens, special ones too; their vectors, float32 [T, width]."""

    tokens: list[str]
    vectors: np.ndarray


# float32 [N, width], or each row's `TokenVectors`.
Vectors = Union[np.ndarray, list[TokenVectors]]


@dataclasses.dataclass(frozen=True)
class VectorForm:
    """Says how hidden states become vectors.

    Attributes:
        pooling: `cls` for the first token's states, `mean` for the mean over
            all tokens, special tokens included, `tokens` for each token's; and
            `trained`, until the form is `completed`.
        layers: their outputs are concatenated; 0 is the first layer, -1 the
            last, as in google-research/bert's `extract_features.py`.
        normalize: a vector's length becomes 1; None until `completed`.
        size: first entries that are kept; None for all.
        prompt: text before each text, or the name of one that was trained.
        left_out: so many first tokens are not pooled.
        dense: layers after the pooling.
    """

    pooling: str = MEAN
    layers: tuple[int, ...] = (-1,)
    normalize: Optional[bool] = False
    size: Optional[int] = None
    prompt: Optional[str] = None
    left_out: int = 0
    dense: tuple[Dense, ...] = ()

    def completed(
        self,
        bert: FrozenBert,
        task: Optional[LoadedTask],
        tokenizer: TextTokenizer,
        max_seq_length: int,
    ) -> "VectorForm":
        """Takes the form of trained vectors where this one leaves it open.

        Refuses a prompt that is too long.
        """
        trained, usual = trained_form(bert, task), Pooled(MEAN, False)
        prompt = self.prompt
        if prompt is not None:
            prompt = (trained or usual).prompt(prompt)
        changes: dict[str, Any] = {"normalize": bool(self.normalize)}
        if self.pooling == TRAINED:
            if trained is None:
                raise UserError(
                    "neither the adapter nor the BERT's folder says how "
                    "vectors are pooled, as folders of sentence-transformers "
                    "do; pass --embeddings=mean or cls"
                )
            if not _is_last(self.layers, bert.config):
                raise UserError(
                    "--layers is for --embeddings=cls, mean or tokens; trained "
                    "vectors are of the last layer"
                )
            usual = trained
            if self.normalize is None:
                changes["normalize"] = trained.normalize
            if prompt is None:
                prompt = trained.prompt()
            changes.update(pooling=trained.pooling, dense=trained.dense)
        left_out = usual.left_out(prompt or "", tokenizer, max_seq_length)
        form = dataclasses.replace(
            self, prompt=prompt, left_out=left_out, **changes
        )
        form.check(bert.config)
        if form.size and task and isinstance(task.task, vector_task.Vectors):
            whole = dataclasses.replace(form, size=None).width(bert.config)
            sizes = {*task.task.form.sizes, whole}
            if form.size not in sizes:
                raise UserError(
                    f"--vector_size is {form.size}, but the adapter was "
                    f"trained for {', '.join(map(str, sorted(sizes)))}"
                )
        return form

    @property
    def has_own_layers(self) -> bool:
        """True if an adapter has the values of the dense layers."""
        return not all(layer.values for layer in self.dense)

    def check(self, config: BertConfig) -> None:
        """Refuses a pooling, layer or size that BERT lacks."""
        if self.pooling not in (TRAINED, *POOLINGS):
            raise UserError(
                f"the pooling is {self.pooling!r}, expected one of "
                f"{', '.join((*POOLINGS, TRAINED))}"
            )
        count = config.num_hidden_layers
        if not self.layers:
            raise UserError("no layer is named; -1 is the last one")
        for layer in self.layers:
            if not -count <= layer < count:
                raise UserError(
                    f"the layers name {layer}, but the model has {count}; "
                    f"expected {-count} to -1, or 0 to {count - 1}"
                )
        whole = dataclasses.replace(self, size=None).width(config)
        if self.size is not None and not 1 <= self.size <= whole:
            raise UserError(
                f"--vector_size is {self.size}, but a vector has {whole} "
                f"entries; expected 1 to {whole}"
            )

    def width(self, config: BertConfig) -> int:
        """Entries of a vector."""
        if self.size:
            return self.size
        if self.dense:
            return self.dense[-1].out_features
        return config.hidden_size * len(self.layers)

    def pool(self, outputs: Sequence[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """Pools a batch, without what follows in `finish`.

        Takes all layers' outputs, [B, T, D], and the mask, int32 [B, T]; gives
        float32 [B, D * layers], or of `tokens` [B, T, D * layers].
        """
        states = [tf.cast(outputs[layer], tf.float32) for layer in self.layers]
        joined = tf.concat(states, axis=-1)
        if self.pooling != TOKENS:
            return pool(joined, mask, self.pooling, self.left_out)
        return joined

    def finish(
        self, pooled: tf.Tensor, layers: Sequence[Sequence[Any]]
    ) -> tf.Tensor:
        """Makes vectors, float32 [..., width], of what `pool` gives.

        `layers` are the variables of the dense layers.
        """
        vectors = apply_layers(self.dense, layers, pooled)[..., : self.size]
        if self.normalize:
            vectors = tf.math.l2_normalize(vectors, axis=-1, epsilon=SMALLEST)
        return vectors


def trained_form(
    bert: FrozenBert, task: Optional[LoadedTask]
) -> Optional[Pooled]:
    """Reads how vectors of an adapter, else of BERT's folder, were trained."""
    if task and isinstance(task.task, vector_task.Vectors):
        return task.task.form
    return bert.pooled


class EmbeddingModel:
    """BERT with a method's hooks, and vectors instead of a head."""

    def __init__(
        self,
        config: BertConfig,
        method: Optional[TuningMethod],
        form: VectorForm,
        create: CreateVariable,
    ):
        """Creates BERT's and the method's variables; no method: BERT alone."""
        self._form = form
        self._bert = TaskModel(
            config, method or HeadOnly(), lambda *_: NO_HEAD, create
        ).bert
        self._layers = create_layers(
            form.dense, create if form.has_own_layers else constants
        )

    def __call__(
        self, features: NamedTensors, context: Context
    ) -> NamedTensors:
        """`vectors` of a batch of `input_pipeline.make_batch`."""
        outputs = self._bert(
            features["input_ids"], features["segment_ids"], context
        )
        mask = context.input_mask
        pooled = self._form.pool(outputs.layer_outputs, mask)
        return {"vectors": self._form.finish(pooled, self._layers)}


def vector_function(
    bert: FrozenBert, task: Optional[LoadedTask], form: VectorForm
) -> Any:
    """Gives a `tf.function` of an adapter's values and a batch: `vectors`."""
    table, method, key = ParameterTable("", ()), None, None
    if task:
        kind = task.kind
        table, method, key = kind.table, kind.method, kind.key
    # The graph reads no prompt.
    form = dataclasses.replace(form, prompt=None)
    return bert.function(
        ("vectors", key, form),
        table,
        functools.partial(EmbeddingModel, bert.config, method, form),
    )


class Embedder:
    """Makes vectors of `width` entries; truncated rows are `cut_rows`."""

    def __init__(
        self,
        bert: FrozenBert,
        task: Optional[LoadedTask] = None,
        form: VectorForm = VectorForm(),
        batch_size: int = 32,
        max_seq_length: Optional[int] = None,
    ):
        """Takes a BERT alone, or with a task's adapter.

        `max_seq_length`, in tokens, is by default the adapter's, else for
        `trained` vectors that of BERT's folder, else all positions.
        """
        if batch_size < 1:
            raise UserError(
                f"--predict_batch_size is {batch_size}, which is too small"
            )
        self.cut_rows = 0
        self._batch_size = batch_size
        self._tokenizer = task.tokenizer if task else bert.tokenizer()
        positions = longest = bert.config.max_tokens
        if task:
            longest = task.max_seq_length
        elif form.pooling == TRAINED and bert.pooled:
            longest = min(longest, bert.pooled.max_seq_length or longest)
        self._length = max_seq_length or longest
        least = 3 + self._tokenizer.between_count
        if not least <= self._length <= positions:
            raise UserError(
                f"--max_seq_length is {self._length}, expected {least} to "
                f"{positions}, which the model has positions for"
            )
        completed = form.completed(bert, task, self._tokenizer, self._length)
        self.form, self.width = completed, completed.width(bert.config)
        self._values = task.values if task else None
        self._function = vector_function(bert, task, completed)

    def __call__(
        self, rows: Sequence[Union[str, TextRow]], places: Sequence[str] = ()
    ) -> Vectors:
        """Makes vectors of rows, texts or pairs, in their order.

        `places` name the rows in messages; default: `row 1`, ...
        """
        features = self._featurize(rows, places)
        self.cut_rows += features.cut_rows
        if not len(features):
            if self.form.pooling == TOKENS:
                return []
            return np.zeros((0, self.width), np.float32)
        values = self._values.get() if self._values else {}
        compute = functools.partial(
            self._function.get_concrete_function(), values
        )
        if self.form.pooling != TOKENS:
            outputs = in_batches(compute, features, self._batch_size)
            check_finite(outputs, "vectors")
            return outputs["vectors"]
        of_row: dict[int, np.ndarray] = {}
        for numbers in input_pipeline.sorted_batches(
            features, self._batch_size
        ):
            batch = input_pipeline.make_batch(features, numbers, None)
            outputs = compute(batch)["vectors"].numpy()
            check_finite({"vectors": outputs}, "vectors")
            for number, vectors in zip(numbers.tolist(), outputs):
                of_row[number] = vectors[: features.lengths[number]]
        starts = features.starts
        return [
            TokenVectors(
                [
                    self._tokenizer.names[int(token)]
                    for token in features.tokens[starts[n] : starts[n + 1]]
                ],
                of_row[n],
            )
            for n in range(len(features))
        ]

    def stream(self, rows: Iterable[Union[str, TextRow]]) -> Iterator[Vectors]:
        """Yields the vectors of `CHUNK` rows at a time, as calls give them."""
        places = map("row {}".format, itertools.count(1))
        for chunk in chunks(rows):
            yield self(chunk, [next(places) for _ in chunk])

    def _featurize(
        self, rows: Sequence[Union[str, TextRow]], places: Sequence[str]
    ) -> Texts:
        places = places or [f"row {n + 1}" for n in range(len(rows))]
        made = list(map(as_row, rows, places))
        for row, where in zip(made, places):
            if len(row) not in (1, 2):
                raise UserError(
                    f"{where}: found {len(row)} texts, expected one or two"
                )
            for text in row:
                check_text(text, where)
        prompt = self.form.prompt or ""
        pairs = [row for row in made if len(row) > 1]
        of_singles, of_pairs = (
            join_texts(
                [prompt + row[0] for row in some],
                second,
                self._tokenizer,
                self._length,
            )
            for some, second in (
                ([row for row in made if len(row) == 1], None),
                (pairs, [row[1] for row in pairs]),
            )
        )
        return Texts.from_rows(
            (next(of_singles if len(row) == 1 else of_pairs) for row in made),
            {},
        )


def _is_last(layers: Sequence[int], config: BertConfig) -> bool:
    return tuple(layers) in ((-1,), (config.num_hidden_layers - 1,))


def embed(
    bert: FrozenBert,
    rows: Sequence[Union[str, TextRow]],
    *,
    task: Optional[LoadedTask] = None,
    pooling: Optional[str] = None,
    layers: Sequence[int] = (-1,),
    normalize: Optional[bool] = None,
    size: Optional[int] = None,
    prompt: Optional[str] = None,
    batch_size: int = 32,
    max_seq_length: Optional[int] = None,
) -> Vectors:
    """Makes vectors of rows that fit in memory, in their order.

    Args:
        bert: the model.
        rows: texts, or pairs of texts.
        task: whose adapter acts on BERT; None for BERT alone.
        pooling, layers, normalize, size, prompt: of `VectorForm`. By default
            the last layer's vectors are as they were trained, else the mean.
        batch_size: rows computed at once.
        max_seq_length: longest input in tokens; default: `Embedder`'s.

    Returns:
        float32 [N, D * number of layers], or [N, size]; of `tokens` each row's
        `TokenVectors`.
    """
    if pooling is None:
        trained = _is_last(layers, bert.config) and trained_form(bert, task)
        pooling = TRAINED if trained else MEAN
    form = VectorForm(pooling, tuple(layers), normalize, size, prompt)
    embedder = Embedder(bert, task, form, batch_size, max_seq_length)
    # Features and padding take the memory of some of the rows.
    chunks = list(embedder.stream(rows))
    if pooling == TOKENS:
        return list(itertools.chain.from_iterable(chunks))
    return np.concatenate(chunks) if chunks else embedder([])
