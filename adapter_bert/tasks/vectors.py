"""Vectors of texts: close for what belongs together, far apart for the rest."""

import dataclasses
import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf

from adapter_bert.data.divisions import HeldOut, number_texts
from adapter_bert.data.input_pipeline import Choices, Features, Texts
from adapter_bert.data.table_flags import Column
from adapter_bert.data.tables import (
    NONE_NAMED,
    READERS,
    Layout,
    Rows,
    SplitFiles,
    check_distinct,
    read_rows,
)
from adapter_bert.data.tokenization import TextTokenizer, join_texts
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE_NUMBER, Topic
from adapter_bert.tasks import kinds, metrics, squad_data, vector_losses
from adapter_bert.tasks.corpus import (
    DOCUMENTS,
    JUDGEMENTS,
    REFUSE,
    Corpus,
    Search,
    SearchTexts,
    add_questions,
)
from adapter_bert.tasks.kinds import TASKS
from adapter_bert.tasks.multi_task import FOLDER
from adapter_bert.tasks.retrieval import (
    RECALLS,
    cosines,
    retrieval_scores,
    unit,
)
from adapter_bert.tasks.task import BatchHead, Task, with_values
from adapter_bert.tasks.text_regression import check_number
from adapter_bert.tasks.text_task import divide
from adapter_bert.tasks.vector_form import (
    CLS,
    MEAN,
    Pooled,
    apply_layers,
    create_layers,
    pool,
)

INFONCE, COSENT = "infonce", "cosent"
# Loss -> the feature that it compares, and its function.
LOSSES = {
    INFONCE: ("text_ids", vector_losses.info_nce),
    COSENT: ("label_scores", vector_losses.cosent),
}
# The texts of a row: the first, and all others.
SIDES = "question", "document"
# Flags of the form of vectors that are not given.
NO_FLAGS = {
    "pooling": None,
    "normalize": None,
    "sizes": (),
    "prompt": None,
    "query_prompt": None,
    "document_prompt": None,
}
SQUAD, BEIR = "squad", "beir"
# Labels of known pairs that belong together; STS-B has scores.
MATCHING = {
    "mrpc": "1",
    "qqp": "1",
    "qnli": "entailment",
    "sts-b": None,
    SQUAD: squad_data.ANSWERED,
    BEIR: None,
}
SINGLE = Layout("text")
# Of SQuAD's files, which are no tables.
QUESTIONS = Layout("question", "context", "answers")


class VectorHead(BatchHead):
    """Vectors themselves; the only variables are of dense layers."""

    needs_pooler = False

    def __init__(self, task: "Vectors", width: int, create: Callable):
        self.width = width
        form = task.form
        self.pooling, self.left_out = form.pooling, task.left_out
        self.dense = form.dense
        self.layers = create_layers(self.dense, create)
        self.reads_first_token = self.pooling == CLS and not self.left_out
        self.temperature = task.temperature
        self.sizes = form.sizes or (width,)
        self.sides = task.trained_together
        compared, self.compute_loss = LOSSES[task.loss_name]
        self.compares = (compared,)

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"vectors": float32 [B, D]}."""
        states = tf.cast(sequence_output, tf.float32)
        vectors = pool(states, context.input_mask, self.pooling, self.left_out)
        return {"vectors": apply_layers(self.dense, self.layers, vectors)}

    def batch_loss(self, vectors, features):
        """Sums the loss of the first entries over `sizes`.

        Source: Kusupati et al. 2022 (Matryoshka), equation 1, with weights of
        1; sentence-transformers, `MatryoshkaLoss`.
        """
        compared = features[self.compares[0]]
        losses = tf.add_n(
            [
                self.compute_loss(
                    vectors[..., :size], compared, self.temperature
                )
                for size in self.sizes
            ]
        )
        return losses + tf.zeros(tf.shape(vectors)[:1])


@dataclasses.dataclass(frozen=True)
class Vectors(Task[Union[Rows, Search]]):
    """Vectors of texts, with the flags of `run_vectors.py`.

    Rows are single texts, pairs of a text and its match, such pairs with a text
    that is no match, or pairs with a score. Single texts are their own matches:
    dropout tells both apart (Gao et al. 2021, SimCSE, section 3).

    Attributes:
        matching: the label of pairs that belong together, where a label says
            so; other pairs are only searched among.
        corpus_file: documents to search in, whose ids rows have in place of a
            second text and negatives; scores are then gains. "" for none.
        questions_file: texts of questions, whose ids rows have in place of a
            first text. "" for none.
        missing_documents: what becomes of ids that no document has.
        base_form: the adapter's form of vectors, else that of BERT's folder.
        left_out: so many first tokens of each text are not pooled.
    """

    name: str = kinds.VECTORS
    pooling: Optional[str] = Topic.METHOD.setting(
        None,
        "A text's vector: mean over its tokens, or cls, the first token; "
        "default: the adapter's, else that of the BERT's folder of "
        "sentence-transformers, else mean.",
        choices=(CLS, MEAN),
    )
    normalize: Optional[bool] = Topic.METHOD.setting(
        None,
        "Whether vectors that the adapter gives have length 1; trained and "
        "scored are cosines in any case. Default: the adapter's, else the "
        "folder's, else false.",
    )
    sizes: Sequence[int] = Topic.METHOD.setting(
        [],
        "Matryoshka: sizes, as 384,128,64, to which vectors may be cut; the "
        "losses of all sizes are added. Default: the adapter's, else whole "
        "vectors alone.",
        flag="matryoshka_sizes",
    )
    loss: Optional[str] = Topic.TRAINING.setting(
        None,
        "infonce: a text's match among the matches of all rows of the batch; "
        "cosent: the order of the pairs' scores. Default: cosent for pairs "
        "with scores, else infonce.",
        choices=(INFONCE, COSENT),
    )
    temperature: float = Topic.TRAINING.setting(
        0.05, "Divides the cosines in the loss.", POSITIVE_NUMBER
    )
    two_adapters: bool = Topic.METHOD.setting(
        False,
        "Train two adapters together: one for first texts (question), one for "
        "second texts and negatives (document).",
    )
    prompt: Optional[str] = Topic.METHOD.setting(
        None,
        "Text before each text, as 'query: ', or the name of one in the "
        "BERT's folder of sentence-transformers; default: the adapter's, else "
        "that folder's.",
    )
    query_prompt: Optional[str] = Topic.METHOD.setting(
        None, "As --prompt, of first texts alone."
    )
    document_prompt: Optional[str] = Topic.METHOD.setting(
        None, "As --prompt, of second texts, negatives and documents alone."
    )
    layout: Layout = SINGLE
    matching: Optional[str] = None
    split_files: SplitFiles = NONE_NAMED
    held_out: Optional[HeldOut] = None
    corpus_file: str = ""
    corpus_layout: Layout = DOCUMENTS
    questions_file: str = ""
    missing_documents: str = REFUSE
    base_form: Pooled = Pooled(MEAN, False)
    left_out: int = 0

    kind = kinds.KINDS[kinds.VECTORS]
    test_splits = ()
    compares_rows = True

    def __post_init__(self):
        try:
            sizes = sorted(set(map(int, self.sizes)), reverse=True)
        except ValueError:
            sizes = [0]
        if sizes and sizes[-1] < 1:
            raise UserError(
                f"--matryoshka_sizes is {','.join(map(str, self.sizes))}, "
                "expected whole numbers above 0, as 384,128,64"
            )
        object.__setattr__(self, "sizes", tuple(sizes))
        if self.has_scores and self.loss == INFONCE:
            raise UserError(
                "--loss=infonce is for pairs that belong together, but these "
                "have scores; pass --loss=cosent, or leave out --score_column"
            )
        if self.loss == COSENT and not self.has_scores:
            and_no = " and no --corpus_file" * bool(self.corpus_file)
            raise UserError(
                "--loss=cosent compares scores of pairs; pass --score_column"
                f"{and_no}, or --loss=infonce for pairs that belong together"
            )
        if self.two_adapters and self.layout.text_b is None:
            raise UserError(
                "--two_adapters is for pairs, of a text for each adapter, but "
                "these are single texts; pass --text_b_column, or leave it out"
            )

    @property
    def has_scores(self) -> bool:
        return (
            self.layout.label is not None
            and self.matching is None
            and not self.corpus_file
        )

    @property
    def loss_name(self) -> str:
        return COSENT if self.has_scores else INFONCE

    @property
    def head_kind(self):
        form = self.form
        return type(self), form.pooling, self.left_out, form.dense

    @property
    def reading(self):
        return "vectors", self.prompts

    @property
    def prompts(self) -> tuple[str, str]:
        """Gives the texts before first texts, and before all others."""
        first, second = (
            self.prompt if prompt is None else prompt
            for prompt in (self.query_prompt, self.document_prompt)
        )
        if second is None:
            second = self.base_form.document_prompt
        return self.base_form.prompt(first), self.base_form.prompt(second)

    @property
    def form(self) -> Pooled:
        """Gives the form of vectors, as the flags change `base_form`."""
        form = self.base_form.with_prompts(*self.prompts)
        flags = {
            "pooling": self.pooling,
            "normalize": self.normalize,
            "sizes": self.sizes or None,
        }
        chosen = {name: x for name, x in flags.items() if x is not None}
        return dataclasses.replace(form, **chosen)

    def describe(self):
        about: dict[str, Any] = self.form.describe()
        if self.held_out:
            about["held_out"] = dataclasses.asdict(self.held_out)
        if self.two_adapters:
            about["tasks"] = {
                side: self._alone(side).describe_named() for side in SIDES
            }
        return about

    def restore(self, description, source):
        self.check_name(description, source)
        self.check_held_out(description, source)
        form = Pooled.restore(description, source)
        restored = dataclasses.replace(self, base_form=form, **NO_FLAGS)
        chosen = dataclasses.replace(self, base_form=form)
        for name in ("pooling", "normalize", "sizes"):
            trained, flag = getattr(form, name), getattr(chosen.form, name)
            if flag != trained:
                raise UserError(
                    f"{source} was trained with {name} {trained!r}, not "
                    f"{flag!r}; leave out the flag"
                )
        if chosen.prompts != restored.prompts:
            raise UserError(
                f"{source} was trained with the prompts {restored.prompts}, "
                f"not {chosen.prompts}; leave out the flag"
            )
        return restored

    def go_on(self, description, source):
        has_two = "tasks" in description
        if description.get("name") == self.name and (
            has_two != self.two_adapters
        ):
            raise UserError(
                f"{source} holds a run of {'two' if has_two else 'one'} "
                f"adapters; pass --two_adapters={str(has_two).lower()}, or "
                "choose another --output_dir"
            )
        return self

    def fit_base(self, opened):
        if opened.pooled is None:
            return self
        return dataclasses.replace(self, base_form=opened.pooled)

    def begin_head(self, base):
        values = {
            name: value
            for number, layer in enumerate(self.form.dense)
            for name, value in zip(layer.variables(number), layer.values)
        }
        return with_values(base, values) if values else base

    def fit_tokenizer(self, tokenizer, max_seq_length):
        first, _ = [
            self.base_form.left_out(prompt, tokenizer, max_seq_length)
            for prompt in self.prompts
        ]
        return dataclasses.replace(self, left_out=first)

    @property
    def training_settings(self):
        settings = {"loss": self.loss_name, "temperature": self.temperature}
        return settings | ({"two_adapters": True} if self.two_adapters else {})

    @property
    def trained_together(self):
        return SIDES if self.two_adapters else ()

    @property
    def members(self):
        if not self.two_adapters:
            return super().members
        return {os.path.join(FOLDER, x): self._alone(x) for x in SIDES}

    def _alone(self, side: str) -> "Vectors":
        prompt = self.prompts[SIDES.index(side)]
        form = self.form.with_prompts(prompt, prompt)
        return dataclasses.replace(
            self, two_adapters=False, base_form=form, **NO_FLAGS
        )

    @property
    def score_names(self):
        if self.has_scores:
            names: tuple[str, ...] = ("spearman", "pearson")
        else:
            recalls = (f"recall_at_{most}" for most in RECALLS)
            names = ("ndcg_at_10", "mrr", "map", *recalls)
        sizes = self.form.sizes
        return (*names, *(f"{names[0]}_of_{size}" for size in sizes))

    @property
    def endings(self):
        return endings_of(self.layout)

    def read(self, data_dir, splits):
        """Reads the files that were named, or those of the folder.

        Rows to train on are those that belong together. Rows to score are a
        `Search` if there is a corpus.
        """
        if self.layout.text_b is None and {*splits} - {"train"}:
            raise UserError(
                "--do_eval needs pairs, and single texts have no match; pass "
                "--text_b_column, or evaluate the adapter on pairs in a run "
                "with --adapter"
            )
        corpus = self._corpus()
        by_split: dict[str, Union[Rows, Search]] = {}
        for split, rows in self._read(data_dir, splits).items():
            self._check(rows)
            is_trained = split == "train"
            if corpus:
                rows = rows.take(self._is_match(rows))
                rows = corpus.choose(rows, is_trained)
            if not is_trained:
                by_split[split] = Search.of(rows, corpus) if corpus else rows
                continue
            if not self.has_scores:
                is_match = self._is_match(rows)
                rows = dataclasses.replace(rows.take(is_match), label=None)
            if rows.text_b is None:
                rows = dataclasses.replace(rows, text_b=rows.text_a)
            if corpus:
                text_b, *choices = (
                    corpus.texts_of(rows, ids)
                    for ids in (rows.text_b, *rows.choices)
                )
                rows = dataclasses.replace(
                    rows, text_b=text_b, choices=tuple(choices), row_id=None
                )
            by_split[split] = rows
        return self, by_split

    def search(self, data_dir: str) -> Search:
        """Reads the training pairs, and the corpus or else their matches."""
        rows = self._read(data_dir, ["train"])["train"]
        self._check(rows)
        rows = rows.take(self._is_match(rows))
        if self.matching is not None:
            rows = dataclasses.replace(rows, label=None)
        corpus = self._corpus()
        if corpus is None:
            texts = list(dict.fromkeys(rows.text_b))
            places = {text: place for place, text in enumerate(texts)}
            corpus = Corpus(rows.path, texts, places, texts)
        return Search.of(corpus.choose(rows, is_trained=True), corpus)

    def _corpus(self) -> Optional[Corpus]:
        if not self.corpus_file:
            return None
        return Corpus.read(
            self.corpus_file, self.corpus_layout, self.missing_documents
        )

    def _read(self, data_dir: str, splits: Sequence[str]) -> dict[str, Rows]:
        if self.held_out:
            rows = read_rows(self.find(data_dir, "train"), self.layout)
            sets = [()] * len(rows)
            by_split = divide(rows, self.held_out, rows.text_a, sets)
            dev = dataclasses.replace(by_split["dev"], choices=())
            return {split: {**by_split, "dev": dev}[split] for split in splits}
        return {split: self._read_split(data_dir, split) for split in splits}

    def _read_split(self, data_dir: str, split: str) -> Rows:
        path, layout = self.find(data_dir, split), self.layout
        if layout == QUESTIONS:
            return squad_data.read_pairs(path)
        if split != "train":
            layout = dataclasses.replace(layout, choices=())
        rows = read_rows(path, layout)
        if not self.questions_file:
            return rows
        return add_questions(rows, self.questions_file)

    def _is_match(self, rows: Rows) -> np.ndarray:
        """Tells which pairs belong together, bool [rows]."""
        if rows.label is None or self.has_scores:
            return np.ones(len(rows), bool)
        if self.matching is None:
            sought = "a score above 0"
            is_match = [float(score) > 0 for score in rows.label]
        else:
            sought = f"the label {self.matching!r}"
            is_match = [label == self.matching for label in rows.label]
        if not any(is_match):
            raise UserError(
                f"{rows.path}: of {len(rows)} pairs none has {sought}, which "
                "means that both texts belong together"
            )
        return np.array(is_match)

    def _check(self, rows: Rows) -> None:
        has_numbers = self.matching is None and rows.label is not None
        for row, label in enumerate(rows.label if has_numbers else ()):
            check_number(label, rows.where(row))
        columns = [("text", rows.text_a)]
        if not self.corpus_file:
            columns.append(("match of the text", rows.text_b))
            columns += [("negative", column) for column in rows.choices]
        is_used = self._is_match(rows)
        for what, column in columns:
            for row, text in enumerate(column or ()):
                if is_used[row] and not text.strip():
                    raise UserError(
                        f"{rows.where(row)}: the {what} is empty; expected a "
                        "text, or no such row"
                    )

    def learn(self, rows):
        if self.has_scores:
            if len(set(map(float, rows.label))) < 2:
                raise UserError(
                    f"{rows.path}: every score is {rows.label[0]}, expected "
                    "scores that differ; is it the right --score_column?"
                )
        elif not rows.choices and len(set(rows.text_b)) < 2:
            raise UserError(
                f"{rows.path}: all rows have one match, expected at least two, "
                "since the matches of other rows are the negatives"
            )
        return self

    def make_rows(self, texts):
        text_a = [text for text, *_ in texts]
        return Rows("", np.arange(len(texts)), text_a)

    def summarize(self, rows):
        if not isinstance(rows, Search):
            return ""
        return f"{len(rows.questions)} texts, {len(rows.documents)} documents"

    def featurize(self, rows, tokenizer: TextTokenizer, max_seq_length):
        """Makes `[CLS] text [SEP]` of each text of a row, and labels.

        `text_ids`, int32 [rows, C], are equal for equal texts; `is_match`,
        int32 [rows], is 1 where both belong together; `label_scores` are
        float32 [rows]. In a search each text is a row.
        """
        first, second = self.prompts

        def read(prompt: str, texts: Sequence[str]) -> Iterator[tuple]:
            texts = [prompt + text for text in texts]
            return join_texts(texts, None, tokenizer, max_seq_length)

        if not isinstance(rows, Search) and rows.text_b is None:
            return Texts.from_rows(read(first, rows.text_a), {})
        of_second = self.base_form.left_out(second, tokenizer, max_seq_length)
        if of_second != self.left_out:
            raise UserError(
                f"the prompts {self.prompts} differ in their number of tokens, "
                "which the BERT's folder leaves out of the pooling "
                "(include_prompt); pass a --query_prompt and a "
                "--document_prompt with equally many tokens"
            )
        if isinstance(rows, Search):
            return SearchTexts.from_rows(
                itertools.chain(
                    read(first, rows.questions), read(second, rows.documents)
                ),
                {},
                relevant=rows.relevant,
                copies=rows.copies,
                has_sides=self.two_adapters,
            )
        others = [rows.text_b, *rows.choices]
        columns = [rows.text_a, *others]
        labels: dict[str, np.ndarray] = {}
        if self.has_scores:
            labels["label_scores"] = np.array(rows.label, np.float32)
        else:
            ids = number_texts(itertools.chain(*columns)).astype(np.int32)
            labels["text_ids"] = ids.reshape(len(columns), -1).T
            if rows.label is not None:
                labels["is_match"] = self._is_match(rows).astype(np.int32)
        return Choices.from_rows(
            _sequences(
                [
                    read(first, rows.text_a),
                    *(read(second, column) for column in others),
                ]
            ),
            labels,
            choices=len(columns),
            has_sides=self.two_adapters,
        )

    def keep(self, rows):
        return Rows("", np.arange(len(rows)))

    def build_head(self, config, create):
        width = self.form.width(config.hidden_size)
        if (size := max(self.form.sizes, default=0)) > width:
            raise UserError(
                f"--matryoshka_sizes has {size}, but vectors of this model "
                f"have {width} entries"
            )
        return VectorHead(self, width, create)

    def decode(self, rows, features, outputs):
        """Gives the vectors of each row's texts, float32 [rows, C, D]."""
        vectors = outputs["vectors"]
        return vectors.reshape(len(rows), -1, vectors.shape[-1])

    def answer(self, rows, predictions):
        vectors = predictions[:, 0]
        if self.form.normalize:
            vectors = unit(vectors).astype(np.float32)
        return [{"vector": vector} for vector in vectors.tolist()]

    def evaluate(self, rows, features, predictions):
        """Scores cosines by their correlation, or a search.

        A pair's second text is searched among those of all pairs, equal texts
        counted once, or in the whole corpus. A text is left out of its own
        search unless the rows say that both belong together.
        """
        scores = self._score(features, predictions)
        main = self.score_names[0]
        for size in self.form.sizes:
            cut = self._score(features, predictions[..., :size])
            scores[f"{main}_of_{size}"] = cut[main]
        return scores

    def _score(
        self, features: Features, vectors: np.ndarray
    ) -> dict[str, float]:
        if isinstance(features, SearchTexts):
            count = len(features.relevant)
            return retrieval_scores(
                vectors[:count, 0],
                vectors[count:, 0],
                features.relevant,
                features.copies,
            )
        labels = features.labels
        if self.has_scores:
            similarities = cosines(vectors[:, 0], vectors[:, 1])
            return {
                name: metrics.METRICS[name](
                    labels["label_scores"], similarities
                )
                for name in ("spearman", "pearson")
            }
        ids = labels["text_ids"]
        is_match = labels.get("is_match", np.ones(len(ids))) > 0
        # The first row of each text, and its place in the corpus.
        texts, places = np.unique(ids[:, 1], return_index=True)
        place_of = {text: place for place, text in enumerate(texts.tolist())}
        relevant: dict[int, dict[int, float]] = {}
        first_rows: dict[int, int] = {}
        for row in np.flatnonzero(is_match).tolist():
            query, match = ids[row].tolist()
            first_rows.setdefault(query, row)
            relevant.setdefault(query, {})[place_of[match]] = 1.0
        copies = [[place_of[x]] if x in place_of else [] for x in relevant]
        return retrieval_scores(
            vectors[list(first_rows.values()), 0],
            vectors[places, 1],
            list(relevant.values()),
            copies,
        )


def _sequences(columns: Sequence[Iterator[tuple]]) -> Iterator[tuple]:
    """Yields each row's texts in turn, and whether any of them is cut."""
    for texts in zip(*columns):
        is_cut = any(cut for *_, cut in texts)
        for tokens, segments, _ in texts:
            yield tokens, segments, is_cut
            is_cut = False


def endings_of(layout: Layout) -> Collection[str]:
    """Lists endings of names of files with these columns."""
    return (".json",) if layout == QUESTIONS else READERS


def named_pairs(name: str) -> tuple[Layout, Optional[str]]:
    """Finds `layout` and `matching` of SQuAD, or of one of GLUE's tasks."""
    task = name.lower()
    if task not in MATCHING:
        raise UserError(
            f"--task_name is {name!r}, expected one of {', '.join(MATCHING)}, "
            "whose pairs belong together or have scores, or custom for files "
            "of your own"
        )
    layout = {SQUAD: QUESTIONS, BEIR: JUDGEMENTS}.get(task)
    return layout or TASKS[task].labelled, MATCHING[task]


def layout_of_columns(
    text_a: Column,
    text_b: Optional[Column],
    negatives: Sequence[Column],
    score: Optional[Column],
    header: bool = True,
    row_id: Optional[Column] = None,
    are_gains: bool = False,
) -> Layout:
    """Makes the layout of the user's own tables from columns.

    `are_gains` says whether scores are gains of documents of a corpus.
    """
    named = {
        "--text_a_column": text_a,
        "--text_b_column": text_b,
        "--score_column": score,
        "--query_id_column": row_id,
    }
    of_pairs = ["--negative_column"] if negatives else []
    of_pairs += [] if score is None else ["--score_column"]
    if of_pairs and text_b is None:
        raise UserError(
            f"{of_pairs[0]} is for pairs; pass --text_b_column, the column of "
            "the text's match"
        )
    if of_pairs[1:] and not are_gains:
        raise UserError(
            f"{' and '.join(of_pairs)} exclude each other: pairs with scores "
            "are compared with one another"
        )
    for number, negative in enumerate(negatives, 1):
        named["--negative_column" + f" ({number})" * (number > 1)] = negative
    check_distinct(named)
    return Layout(
        text_a,
        text_b,
        score,
        header,
        row_id,
        choices=tuple(negatives),
        lists_choices=True,
    )
