"""Programs as functions, for notebooks and services: `import adapter_bert`.

Keywords are the programs' flags, from the same declarations and with the same
checks. The same settings give the same files and the same bits as a command
line. TensorFlow's options for the whole process are as before after each call;
docs/python_api.md names the two that cannot be given back.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files, json_lines
from adapter_bert.answering import embeddings, row_stream
from adapter_bert.answering.answers import Answer, ranked
from adapter_bert.answering.embeddings import TokenVectors
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import LoadedTask, kind_of, load_task
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import adapter_artifact, run_record, sources
from adapter_bert.commands import audit as audit_program
from adapter_bert.commands import export as export_program
from adapter_bert.commands import (
    predict,
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
    run_vectors,
)
from adapter_bert.commands import select as select_program
from adapter_bert.commands.audit import Audit
from adapter_bert.data import memory_rows
from adapter_bert.data.memory_rows import FileOrRows, MemoryRows
from adapter_bert.errors import UserError
from adapter_bert.flags import at_home, declared, default_of, read
from adapter_bert.keywords import of_keywords
from adapter_bert.library import flags as adapter_flags
from adapter_bert.library.adapter_library import ALL, AdapterLibrary
from adapter_bert.library.flags import Answering, Embedding
from adapter_bert.tasks import character_spans, masked_lm, tagging
from adapter_bert.tasks.kinds import RERANK, VECTORS
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.training import devices, process_options
from adapter_bert.training.settings import ADAPTER, Hardware

Path = Union[str, "os.PathLike[str]"]
# Rows in memory, as in `data/memory_rows.py`, or a file's path.
RowsOrPath = Any
Function = TypeVar("Function", bound=Callable)
CUSTOM, QUESTIONS = run_classifier.CUSTOM, "squad"
# Programs by the tasks that they alone have.
PROGRAMS: dict[str, Any] = {
    tagging.NAME: run_tagger,
    QUESTIONS: run_squad,
    masked_lm.NAME: run_mlm,
    VECTORS: run_vectors,
}
# A split's name among the arguments, and the flag of its file.
SPLITS = {
    "rows": "train_file",
    "eval_rows": "eval_file",
    "predict_rows": "predict_file",
}
# Settings that `load_bert` has.
OF_BERT = ("init_checkpoint", "bert_config_file", "vocab_file", "do_lower_case")
# Those that runs may change.
DTYPES = ("compute_dtype", "base_dtype")
# Settings that a dev set is needed for.
OF_DEV_SET = (
    "calibrate fit_thresholds keep_best early_stopping eval_steps".split()
)
# Further settings that the functions make of their arguments.
OF_RUNS = (*OF_BERT, "do_train", "describe", "task_name")
OF_ADAPTERS = (*OF_BERT, *DTYPES, "adapter", "task", "output_dir")
# Unlike the programs'.
ENGINE = "strategy"
# Settings of all programs; settings of tables come first.
OF_PROGRAMS = tuple(
    settings
    for program in (run_classifier, *PROGRAMS.values())
    for settings in program.SETTINGS
)


def _path(path: Path) -> str:
    return at_home(os.fspath(path))


def _shows_settings(
    classes: Sequence[type], without: Sequence[str]
) -> Callable[[Function], Function]:
    """Puts flags, in the place of `**settings`, into a function's signature."""

    def decorate(function: Function) -> Function:
        parameters = dict(inspect.signature(function).parameters)
        del parameters["settings"]
        for name, _, field in declared(classes):
            if name not in without:
                default = ENGINE if name == "engine" else default_of(field)
                shown = inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=field.type,
                )
                parameters.setdefault(name, shown)
        function.__signature__ = inspect.Signature(list(parameters.values()))
        return function

    return decorate


@dataclasses.dataclass(frozen=True)
class Bert:
    """A pretrained BERT; `load_bert` makes it.

    Attributes:
        config: its sizes.
        settings: of `load_bert`, by the flags' names.
    """

    config: BertConfig
    settings: Mapping[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what is in memory, which a copy reads again."""
        return {"config": self.config, "settings": self.settings}

    def __deepcopy__(self, memo: Any) -> "Bert":
        """Returns the same one, which clones of estimators share."""
        return self

    @property
    def init_checkpoint(self) -> str:
        """Names the folder, checkpoint or handle."""
        return self.settings["init_checkpoint"]

    @functools.cached_property
    def frozen(self) -> FrozenBert:
        """Reads the BERT, which all predictors share, at first use."""
        return FrozenBert.open(**self.settings)


def load_bert(
    name: Path,
    *,
    bert_config_file: Path = "",
    vocab_file: Path = "",
    do_lower_case: Optional[bool] = None,
    compute_dtype: str = "float32",
    base_dtype: str = "float32",
) -> Bert:
    """Opens a pretrained BERT or a model like it, as RoBERTa or MPNet.

    Args:
        name: what `--init_checkpoint` takes: `minilm`, `mpnet`, a folder, a
            checkpoint, an archive, a module's handle, or a repository
            (`hf:ORG/NAME[@REVISION]`), whose commit stays the same from then
            on.
        bert_config_file: JSON file of the sizes; default: next to the model.
        vocab_file: the vocabulary; default: next to the model.
        do_lower_case: whether texts are lower-cased; default: what the model
            or its vocabulary says.
        compute_dtype: `float32`, `bfloat16` or `auto`, of products and
            activations.
        base_dtype: `float32` or `int8`, in which BERT's frozen matrices are
            kept.
    """
    path = _path(name)
    settings = {
        "init_checkpoint": path,
        "bert_config_file": _path(bert_config_file or ""),
        "vocab_file": _path(vocab_file or ""),
        "do_lower_case": do_lower_case,
        "compute_dtype": compute_dtype or "float32",
        "base_dtype": base_dtype or "float32",
    }
    with of_keywords(run_classifier.SETTINGS, settings, "load_bert()"):
        opened = sources.open_init_checkpoint(path)
        config = sources.read_config(opened, settings["bert_config_file"])
        sources.read_tokenizer(
            opened, config, settings["vocab_file"], do_lower_case
        )
    if opened.weights.hub:
        # With the commit.
        settings["init_checkpoint"] = opened.weights.hub
    return Bert(config, settings)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder, with what was written there as values.

    `Run("out/tickets")` reads a folder that an earlier process wrote.
    """

    output_dir: str

    def __post_init__(self):
        object.__setattr__(self, "output_dir", _path(self.output_dir))

    @property
    def scores(self) -> dict[str, float]:
        """Gets the dev set's scores by name, `loss` in nats."""
        return run_record.scores_in(run_record.read_results(self.output_dir))

    @property
    def curve(self) -> dict[str, list[tuple[int, float]]]:
        """Curves as lists of (step, value).

        `loss` (nats), `learning_rate` and `examples_per_second` of the
        training, and scores of the dev set, as `eval_accuracy`.
        """
        # Matplotlib takes long to load.
        from adapter_bert.reports.curves import read_curves

        folder = pathlib.Path(self.output_dir)
        dev = read_curves(folder / "eval")
        return {
            **read_curves(folder),
            **{f"eval_{name}": points for name, points in dev.items()},
        }

    @property
    def adapter(self) -> str:
        """Returns the trained adapter's folder."""
        folders = self.adapters
        if len(folders) != 1:
            raise UserError(
                f"{self.output_dir} holds {len(folders)} adapters"
                + f" ({', '.join(folders)})" * bool(folders)
                + ", expected one; Run.adapters has each by its task"
            )
        return next(iter(folders.values()))

    @property
    def adapters(self) -> dict[str, str]:
        """Returns the folder of each trained adapter, by its task's name."""
        places = [self.output_dir]
        tasks = os.path.join(self.output_dir, "tasks")
        if files.is_folder(tasks):
            places += [os.path.join(tasks, name) for name in files.names(tasks)]
        folders = [os.path.join(place, ADAPTER) for place in places]
        return {
            adapter_artifact.read_config(folder)["task"]["name"]
            if place == self.output_dir
            else os.path.basename(place): folder
            for place, folder in zip(places, folders)
            if files.is_folder(folder)
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Reads the description, `run.json`: settings, engine, versions."""
        run = run_record.read_run(self.output_dir)
        if run is None:
            raise UserError(
                f"{self.output_dir} holds no {run_record.RUN_FILE}; expected "
                "the output_dir of a training"
            )
        return run

    @property
    def engine(self) -> str:
        """Names the engine: `StrategyEngine` or `EstimatorEngine`."""
        return self.settings["versions"]["engine"]


# A folder, or the run that trained the only adapter of its folder.
Adapter = Union[Path, Run]


def _checked(bert: Any) -> Bert:
    if not isinstance(bert, Bert):
        raise UserError(
            f"bert is a {type(bert).__name__}, expected a Bert, which "
            "load_bert() makes of a model's folder"
        )
    return bert


def _files(bert: Any) -> dict[str, Any]:
    return {name: _checked(bert).settings[name] for name in OF_BERT}


def _folder(adapter: Any) -> str:
    if isinstance(adapter, Run):
        return adapter.adapter
    return _path(adapter)


@_shows_settings(OF_PROGRAMS, OF_RUNS)
def train(
    bert: Bert,
    rows: RowsOrPath = None,
    eval_rows: RowsOrPath = None,
    predict_rows: RowsOrPath = None,
    *,
    task_name: str = CUSTOM,
    **settings: Any,
) -> Run:
    """Trains a task, scores the dev set, and predicts, as the programs do.

    The dev set is scored if there is one: `eval_rows`, `dev_share`,
    `eval_file` or `data_dir`. `predict_rows` are answered in
    `output_dir` (docs/outputs.md). A training that was interrupted goes on
    if the call is repeated.

    Args:
        bert: the pretrained model.
        rows: to train on: a list of dictionaries, of tuples (texts, then the
            label), a dictionary of columns, a pandas DataFrame, a table of
            `datasets`, or a file's path. None: `data_dir` or `train_file`.
        eval_rows: of the dev set.
        predict_rows: without labels.
        task_name: `custom` for rows of your own, a GLUE task with `data_dir`,
            `rerank`, `tagging`, `squad`, `masked_lm` or `vectors`.
        **settings: flags of the task's program by their names (docs/flags.md),
            `output_dir` at least. Unlike in the programs, `engine` is
            `strategy` by default.

    Returns:
        The run, whose folder is `output_dir`.
    """
    tables = dict(zip(SPLITS, (rows, eval_rows, predict_rows)))
    task_name = task_name or CUSTOM
    return _run("train()", bert, task_name, tables, settings, True)


@_shows_settings(OF_PROGRAMS, (*OF_RUNS, "adapter"))
def evaluate(
    bert: Bert,
    adapter: Adapter,
    rows: RowsOrPath = None,
    **settings: Any,
) -> dict[str, float]:
    """Scores a trained adapter on labelled rows.

    Args:
        bert: the BERT that the adapter was trained on.
        adapter: its folder, or the run that trained it.
        rows: as for `train`, tuples in the order of the adapter's columns;
            None: `data_dir` or `eval_file`, of questions `predict_file`. With
            `dev_share` the training's rows, whose held-out part is scored.
        **settings: as for `train`. `output_dir` is for the files, which are
            not kept by default.

    Returns:
        The scores by name, `loss` in nats.
    """
    folder = _folder(adapter)
    task = adapter_artifact.read_config(folder)["task"]
    name = "" if "tasks" in task else task["name"]
    with _with_folder({"adapter": folder, **settings}) as settings:
        rows = {"eval_rows": rows}
        return _run("evaluate()", bert, name, rows, settings, False).scores


@contextlib.contextmanager
def _with_folder(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Settings with an `output_dir`, by default a folder that is deleted."""
    with files.temporary_folder() as place:
        output_dir = settings.get("output_dir") or os.path.join(place, "out")
        yield {**settings, "output_dir": output_dir}


def _run(
    caller: str,
    bert: Bert,
    task_name: str,
    tables: Mapping[str, RowsOrPath],
    settings: Mapping[str, Any],
    do_train: bool,
) -> Run:
    fixed = {**_files(bert), "do_train": do_train, "describe": False}
    program = PROGRAMS.get(task_name.lower(), run_classifier)
    if program is run_classifier:
        fixed["task_name"] = task_name
    sources = {
        name: _source(rows, name)
        for name, rows in tables.items()
        if rows is not None
    }
    if not do_train and settings.get("dev_share") and "eval_rows" in sources:
        # The part that a training held out of the same rows.
        sources["rows"] = sources.pop("eval_rows")
    is_scored = "eval_rows" in sources
    if program is run_squad:
        if {"eval_rows", "predict_rows"} <= set(sources):
            raise UserError(
                "eval_rows and predict_rows exclude each other for "
                f"{QUESTIONS}, where the rows that are scored are answered too"
            )
        if is_scored:
            sources["predict_rows"] = sources.pop("eval_rows")
        elif not do_train:
            is_scored = bool(settings.get("predict_file"))
    else:
        of_dev = ("eval_file", "dev_share", "data_dir")
        is_scored = is_scored or any(map(settings.get, of_dev))
    fixed.update((SPLITS[name], source) for name, source in sources.items())
    is_predicted = "predict_rows" in sources or settings.get("predict_file")
    values = {
        "engine": ENGINE,
        **{name: bert.settings[name] for name in DTYPES},
        "do_eval": is_scored or any(map(settings.get, OF_DEV_SET)),
        "do_predict": bool(is_predicted),
        **{name: x for name, x in settings.items() if x is not None},
    }
    for name in "adapter", "init_adapter":
        if settings.get(name):
            values[name] = _folder(settings[name])
    if isinstance(sources.get("rows"), MemoryRows):
        # There is no file with a folder beside it.
        values["frozen_layers_dir"] = values.get(
            "frozen_layers_dir"
        ) or settings.get("output_dir")
    with (
        process_options.of_a_run(),
        of_keywords(program.SETTINGS, values, caller, fixed),
    ):
        program.main()
    return Run(_path(values["output_dir"]))


def _source(rows: RowsOrPath, name: str) -> FileOrRows:
    if isinstance(rows, (str, os.PathLike)):
        return _path(rows)
    return MemoryRows(rows, name)


class Library(AdapterLibrary):
    """A folder of adapters on one BERT, which several processes may change."""

    def __init__(self, path: Path):
        """Opens the folder, a new one if there is none."""
        super().__init__(_path(path), create=True)

    def add(self, folder: Adapter, name: Optional[str] = None) -> str:
        """Copies an adapter, or a run's, as `AdapterLibrary.add` does."""
        return super().add(_folder(folder), name)


# One adapter, some of them, some by name, or all of a library.
Adapters = Union[Adapter, Sequence[Adapter], Mapping[str, Adapter], Library]


def _adapter_settings(bert: Bert, adapters: Adapters) -> dict[str, Any]:
    fixed = {**_checked(bert).settings, "adapter": None, "task": None}
    # An adapter says it.
    del fixed["do_lower_case"]
    if isinstance(adapters, AdapterLibrary):
        return {**fixed, "library": adapters.path, "task": [ALL]}
    if isinstance(adapters, Run) and len(adapters.adapters) > 1:
        adapters = adapters.adapters
    if isinstance(adapters, Mapping):
        folders = [f"{name}={_folder(one)}" for name, one in adapters.items()]
    elif isinstance(adapters, str) or not isinstance(adapters, Iterable):
        folders = [_folder(adapters)]
    else:
        folders = list(map(_folder, adapters))
    return {**fixed, "adapter": folders}


class Answers(list[Answer]):
    """Answers in the order of the rows."""

    def to_frame(self) -> Any:
        """Makes a pandas DataFrame, a row for each answer.

        Columns are the answers' members, and `scores.<label>` for each score.
        """
        import pandas

        return pandas.json_normalize(list(map(dict, self)))


class Predictor:
    """Answers texts with any number of adapters on one BERT.

    Threads may call it at the same time.
    """

    @_shows_settings((Answering,), OF_ADAPTERS)
    def __init__(
        self, bert: Bert, adapters: Optional[Adapters] = None, **settings: Any
    ):
        """Loads adapters.

        Args:
            bert: the BERT that they were trained on.
            adapters: a folder or a run, several of them, also by name, or
                a library for all of it. None: a cross-encoder's own head.
            **settings: flags of `adapter-bert predict` by their names, as
                `max_seq_length` (tokens), `predict_batch_size` (rows).
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(process_options.restored())
            if adapters is None:
                from adapter_bert.library.foreign import write_cross_encoder

                place = stack.enter_context(files.temporary_folder())
                write_cross_encoder(_checked(bert).frozen, place)
                adapters = place
            fixed = _adapter_settings(bert, adapters)
            stack.enter_context(
                of_keywords((Answering,), settings, "Predictor()", fixed)
            )
            self._bert = bert
            self._predictor = predict.open_predictor(bert.frozen)

    @property
    def names(self) -> list[str]:
        """Returns the names of the adapters."""
        return self._predictor.names

    def add(self, adapter: Adapter, name: Optional[str] = None) -> str:
        """Loads another adapter, or replaces the one of this name.

        Returns:
            The name, by default the task's.
        """
        with process_options.restored():
            return self._predictor.add(_folder(adapter), name)

    def remove(self, name: str) -> None:
        """Unloads an adapter."""
        self._predictor.remove(name)

    def predict(
        self,
        texts: RowsOrPath,
        task: Union[None, str, Sequence[str]] = None,
        explain: bool = False,
    ) -> Answers:
        """Answers rows.

        Args:
            texts: a list of rows, each a text, a tuple of texts (a pair; a
                question and its context) or a dictionary by the adapter's
                columns, for tagging also a list of words; a DataFrame, a
                table of `datasets`; or a `pathlib.Path` of a file. One text
                or tuple is one row.
            task: an adapter's name, or one for each row; default: the only
                adapter.
            explain: whether each answer has an `explanation`: what each word
                adds to the answer. `adapter-bert predict --explain` gives the
                same.
        """
        predictor = self._predictor
        if task is None:
            if len(predictor.names) != 1:
                raise UserError(
                    f"{len(predictor.names)} adapters are loaded; pass task="
                    "one of " + ", ".join(predictor.names)[:200]
                )
            [task] = predictor.names
        names = [task] if isinstance(task, str) else list(task)
        first, *others = map(
            predictor.task, dict.fromkeys(names or predictor.names[:1])
        )
        rows = _rows_of(texts, first, first.task.takes_tokens)
        if isinstance(texts, os.PathLike) and any(
            one.columns != first.columns
            and _rows_of(texts, one, first.task.takes_tokens) != rows
            for one in others
        ):
            raise UserError(
                f"{texts} is read by the columns of one task, but those named "
                "read several; pass rows as dictionaries, or ask one by one"
            )
        if isinstance(task, str):
            names *= len(rows)
        if len(names) != len(rows):
            raise UserError(
                f"task names {len(names)} adapters for {len(rows)} rows; "
                "expected one name, or one for each row"
            )
        rows = [
            _texts_at(row, predictor.task(name), f"row {number}")
            for number, (row, name) in enumerate(zip(rows, names), 1)
        ]
        with _computing(self._bert):
            return Answers(predictor.ask(list(zip(names, rows)), explain))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        task: Optional[str] = None,
        top_n: Optional[int] = None,
    ) -> Answers:
        """Orders documents by how well they answer a query.

        Args:
            query: a text.
            documents: texts.
            task: a reranker's name; default: the only one.
            top_n: how many are wanted, the best ones; default: all.

        Returns:
            `index` (from 0), `score` and `document` of each, the best first;
            equal scores keep their order.
        """
        loaded = self._predictor
        names = [n for n in self.names if kind_of(loaded.task(n)) == RERANK]
        chosen = [name for name in names if task in (None, name)]
        if len(chosen) != 1:
            raise UserError(
                f"task is {task!r}, expected one of the kind {RERANK}: "
                f"{', '.join(names)[:200] or 'none is loaded'}"
            )
        if isinstance(documents, (str, bytes, Mapping)) or hasattr(
            documents, "columns"
        ):
            raise UserError(
                f"documents is a {type(documents).__name__}, expected a list "
                "of texts"
            )
        is_count = isinstance(top_n, (int, np.integer)) and top_n > 0
        if not (top_n is None or is_count):
            raise UserError(
                f"top_n is {top_n!r:.80}, expected a whole number above 0"
            )
        texts = list(memory_rows.records(documents, "documents"))
        answers = self.predict([(query, text) for text in texts], *chosen)
        order = ranked(answers, top_n)
        return Answers(Answer(**x, document=texts[x.index]) for x in order)


@contextlib.contextmanager
def _computing(bert: Bert) -> Iterator[FrozenBert]:
    with process_options.restored():
        frozen = bert.frozen
        devices.choose_graph_optimizer(Hardware(), frozen.compute_dtype.name)
        yield frozen


def _rows_of(
    texts: RowsOrPath, loaded: Optional[LoadedTask], takes_tokens: bool = False
) -> list[Any]:
    if isinstance(texts, (str, tuple)):
        return [texts]
    columns = loaded.task.columns if loaded else TEXT_COLUMNS[:1]
    if not isinstance(texts, os.PathLike):
        rows = list(memory_rows.records(texts, "texts", columns))
        if any(isinstance(row, Mapping) for row in rows):
            from adapter_bert.data import formats

            rows = [
                next(formats.accepted("texts", [row], ()))
                if isinstance(row, Mapping)
                else row
                for row in rows
            ]
        if takes_tokens and rows and isinstance(rows[0], Mapping):
            rows = list(character_spans.texts_alone("texts", iter(rows)))
        return rows
    alternatives = [columns, TEXT_COLUMNS[: len(columns)]]
    if loaded:
        alternatives.append(loaded.columns)
    rows = row_stream.file_rows(
        _path(texts), alternatives, lambda size: None, takes_tokens
    )
    return [row for row, _ in rows]


def _texts_at(row: Any, loaded: Optional[LoadedTask], where: str) -> Any:
    if not isinstance(row, Mapping):
        return row
    whole, columns = TEXT_COLUMNS, TEXT_COLUMNS[:1]
    if loaded:
        whole, columns = loaded.columns, loaded.task.columns
    usual = TEXT_COLUMNS[: len(columns)]
    for names in (whole, columns, usual):
        # An empty second text is none.
        more = names[len(columns) :]
        has_all = all(row.get(x) not in (None, "") for x in more)
        if len(names) >= len(columns) and has_all and set(names) <= set(row):
            try:
                return tuple(
                    tuple(row[name])
                    if isinstance(row[name], list)
                    else json_lines.text_at(row, name)
                    for name in names
                )
            except ValueError as error:
                raise UserError(f"{where}: {error}") from error
    raise UserError(
        f"{where}: found the columns {json_lines.list_keys(row)}, expected "
        f"{json_lines.list_keys(columns)}"
    )


def rerank(
    bert: Bert,
    query: str,
    documents: Sequence[str],
    *,
    adapter: Optional[Adapter] = None,
    top_n: Optional[int] = None,
    predict_batch_size: int = 32,
    max_seq_length: Optional[int] = None,
) -> Answers:
    """Orders documents by how well they answer a query; see docs/search.md.

    A `Predictor` with the same adapter reads it once for many queries.

    Args:
        bert: the model.
        query: a text.
        documents: texts.
        adapter: folder or run of a trained reranker; default: the own head
            of a cross-encoder.
        top_n: how many are wanted, the best ones; default: all.
        predict_batch_size: pairs computed at once.
        max_seq_length: longest input in tokens; default: the adapter's.

    Returns:
        As `Predictor.rerank`.
    """
    predictor = Predictor(
        bert,
        adapter,
        predict_batch_size=predict_batch_size,
        max_seq_length=max_seq_length,
    )
    return predictor.rerank(query, documents, top_n=top_n)


def embed(
    bert: Bert,
    texts: RowsOrPath,
    *,
    adapter: Optional[Adapter] = None,
    pooling: Optional[str] = None,
    layers: Union[int, Sequence[int]] = (-1,),
    normalize: Optional[bool] = None,
    vector_size: Optional[int] = None,
    prompt: Optional[str] = None,
    predict_batch_size: int = 32,
    max_seq_length: Optional[int] = None,
) -> Union[np.ndarray, list[TokenVectors]]:
    """Computes the vectors of texts, from hidden states of BERT.

    Args:
        bert: the model.
        texts: as for `Predictor.predict`: a list of texts or pairs of texts, a
            table by the adapter's columns, or a `pathlib.Path` of a file. For
            BERT alone the columns are `text`, and in memory `text_b` makes
            pairs.
        adapter: folder or run of an adapter that acts on BERT; default: BERT
            alone.
        pooling: `mean` of the tokens, `cls` (the first token), `tokens`, or
            `trained`: as the adapter's training says, or the BERT's folder
            of sentence-transformers; default: `trained` if one says it and
            the last layer is asked, else `mean`.
        layers: numbered as Python's lists are, -1 the last one; vectors of
            several are concatenated.
        normalize: whether each vector has the length 1; default: as `trained`
            vectors were, else no.
        vector_size: so many first entries are kept, for which the adapter was
            trained; default: all.
        prompt: text before each text, or the name of a prompt that the adapter
            or the folder has; default: that of `trained` vectors, else none.
        predict_batch_size: rows computed at once.
        max_seq_length: longest input in tokens; default: the adapter's, else
            for `trained` vectors the folder's, else BERT's.

    Returns:
        float32 [N, D * number of layers] or [N, vector_size]; for `tokens` a
        list of each row's `tokens` and `vectors`, float32 [T, as before].
    """
    values = {
        "embeddings": pooling or embeddings.MEAN,
        "layers": layers,
        "normalize": normalize,
        "vector_size": vector_size,
        "prompt": prompt,
        "predict_batch_size": predict_batch_size,
        "max_seq_length": max_seq_length,
    }
    folder = None if adapter is None else _folder(adapter)
    with of_keywords((Answering, Embedding), values, "embed()"):
        answering, form = read(Answering), adapter_flags.read_form()
    task = None
    with _computing(_checked(bert)) as frozen:
        if folder is not None:
            task = load_task(frozen, folder, answering.max_seq_length)
        rows = [
            _texts_at(row, task, f"row {number}")
            for number, row in enumerate(_rows_of(texts, task), 1)
        ]
        return embeddings.embed(
            frozen,
            rows,
            task=task,
            pooling=pooling,
            layers=form.layers,
            normalize=form.normalize,
            size=form.size,
            prompt=form.prompt,
            batch_size=answering.predict_batch_size,
            max_seq_length=answering.max_seq_length,
        )


@_shows_settings(
    audit_program.SETTINGS, (*OF_RUNS, *audit_program.REFUSED, "train_file")
)
def audit(
    bert: Bert,
    rows: RowsOrPath = None,
    *,
    task_name: str = CUSTOM,
    **settings: Any,
) -> Audit:
    """Finds rows whose labels are probably wrong; see docs/audit.md.

    Args:
        bert: the pretrained model.
        rows: with labels, as for `train`; None: `data_dir`.
        task_name: `custom`, or a GLUE task with `data_dir`.
        **settings: flags of `adapter-bert audit` by their names, as `folds` or
            `tuning_method`. `output_dir` is for the files, which are not kept
            by default.
    """
    fixed = {**_files(bert), "task_name": task_name}
    settings = {**{name: bert.settings[name] for name in DTYPES}, **settings}
    if rows is not None:
        fixed["train_file"] = _source(rows, "rows")
    with (
        _with_folder(settings) as settings,
        process_options.of_a_run(),
        of_keywords(audit_program.SETTINGS, settings, "audit()", fixed),
    ):
        return audit_program.main()


def select(
    bert: Bert,
    pool: RowsOrPath,
    count: int = 100,
    *,
    adapter: Optional[Adapter] = None,
    by: Optional[str] = None,
    columns: Union[str, Sequence[str]] = (),
    max_seq_length: Optional[int] = None,
    predict_batch_size: int = 32,
) -> list[dict[str, Any]]:
    """Chooses the rows of a pool to be labelled next; see docs/audit.md.

    Args:
        bert: the pretrained model.
        pool: rows without labels, as for `Predictor.predict`, or a file's path.
        count: of rows to choose.
        adapter: folder or run of an adapter that was trained on labelled rows.
        by: `margin` or `k_centre`; default: `margin` with an adapter.
        columns: one or two, of the texts; default: the adapter's, else `text`.
        max_seq_length: longest input in tokens; default: the adapter's.
        predict_batch_size: rows computed at once.

    Returns:
        The chosen rows, the first to be labelled first: `row` (number of the
        row in the pool, from 1), `text` and of pairs `text_b`, and `margin` or
        `k_centre`.
    """
    # A comma may be part of a name.
    columns = [columns] if isinstance(columns, str) else columns
    if isinstance(pool, (str, os.PathLike)):
        source = _path(pool)
    else:
        pool = list(memory_rows.records(pool, "pool"))
        source = MemoryRows(pool, "pool")
        if adapter is None and pool and isinstance(pool[0], (tuple, list)):
            columns = columns or TEXT_COLUMNS
    settings = {
        "count": count,
        "by": by,
        "columns": columns,
        "max_seq_length": max_seq_length,
        "predict_batch_size": predict_batch_size,
    }
    fixed = _adapter_settings(bert, [] if adapter is None else adapter)
    fixed["pool"] = source
    classes = select_program.SETTINGS
    with of_keywords(classes, settings, "select()", fixed):
        selection = read(select_program.Selection)
        with _computing(bert) as frozen:
            return select_program.choose(selection, frozen)


@_shows_settings(export_program.SETTINGS, OF_ADAPTERS)
def export(
    bert: Bert, adapters: Adapters, output_dir: Path, **settings: Any
) -> str:
    """Writes adapters and their BERT as a SavedModel that takes text.

    Args:
        bert: the BERT that the adapters were trained on.
        adapters: as for `Predictor`.
        output_dir: folder for the model's versions: 1, 2, ...
        **settings: flags of `adapter-bert export` by their names. With
            `format="tflite"` one adapter becomes a file of TensorFlow Lite, and
            `output_dir` is the new folder for the file.

    Returns:
        The folder of the new version, which `adapter-bert serve` and
        TensorFlow Serving load; or the file's.
    """
    fixed = {**_adapter_settings(bert, adapters), "output_dir": output_dir}
    program = export_program
    with (
        of_keywords(program.SETTINGS, settings, "export()", fixed),
        _computing(bert) as frozen,
    ):
        return program.run(frozen)
