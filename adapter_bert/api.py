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
from typing import (
    Any,
    Callable,
    Optional,
    TypeVar,
    Union,
)

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files, json_lines
from adapter_bert.answering import embeddings, row_stream
from adapter_bert.answering.answers import Answer
from adapter_bert.answering.embeddings import TokenVectors, VectorForm
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import adapter_artifact, run_record, sources
from adapter_bert.commands import audit as audit_program
from adapter_bert.commands import export as export_program
from adapter_bert.commands import (
    minilm,
    mpnet,
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
from adapter_bert.errors import UserError
from adapter_bert.flags import at_home, declared, is_given, of_keywords, read
from adapter_bert.library import flags as adapter_flags
from adapter_bert.library.adapter_library import ALL, RESULTS, AdapterLibrary
from adapter_bert.library.flags import Answering, Embedding
from adapter_bert.reports.report_run import Curve, read_curves
from adapter_bert.tasks import custom, masked_lm, tagging, tagging_files
from adapter_bert.tasks.from_description import custom_arguments
from adapter_bert.tasks.kinds import VECTORS
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.training import devices, process_options
from adapter_bert.training.engines import Hardware
from adapter_bert.training.run_files import ADAPTER

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
# A split's name among rows in memory, and the flag of its file.
SPLITS = {
    "rows": "train_file",
    "eval_rows": "eval_file",
    "predict_rows": "predict_file",
}
# Settings that `load_bert` has.
OF_BERT = ("init_checkpoint", "bert_config_file", "vocab_file", "do_lower_case")
# Further settings that the functions make of their arguments.
OF_RUNS = (*OF_BERT, "do_train", "describe", "task_name")
# Settings of `load_bert` that runs may change.
OF_MEMORY = ("compute_dtype", "base_dtype")
OF_ADAPTERS = (*OF_BERT, *OF_MEMORY, "adapter", "task", "output_dir")
# Settings of all programs; settings of tables come first.
OF_PROGRAMS = tuple(
    settings
    for program in (run_classifier, *PROGRAMS.values())
    for settings in program.SETTINGS
)
# Defaults other than the programs'.
DEFAULTS: dict[str, Any] = {"engine": "strategy"}


def _path(path: Path) -> str:
    return at_home(os.fspath(path))


def _shows_settings(
    classes: Sequence[type], without: Sequence[str]
) -> Callable[[Function], Function]:
    fields: dict[str, dataclasses.Field] = {}
    for name, _, field in declared(classes):
        fields.setdefault(name, field)

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *parameters, _ = signature.parameters.values()
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=DEFAULTS.get(name, _default_of(field)),
                annotation=field.type,
            )
            for name, field in fields.items()
            if name not in (*without, *signature.parameters)
        ]
        function.__signature__ = signature.replace(
            parameters=[*parameters, *more]
        )
        return function

    return decorate


def _default_of(field: dataclasses.Field) -> Any:
    if field.default is dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclasses.dataclass(frozen=True)
class Bert:
    """A pretrained BERT; `load_bert` makes it.

    Attributes:
        init_checkpoint: path or handle.
        config: its sizes.
        settings: of `load_bert`, by the flags' names.
    """

    init_checkpoint: str
    config: BertConfig
    settings: Mapping[str, Any]

    @functools.cached_property
    def frozen(self) -> FrozenBert:
        """Reads the BERT, which all predictors share, at first use."""
        return FrozenBert.open(
            self.init_checkpoint,
            self.settings["bert_config_file"],
            self.settings["vocab_file"],
            self.settings["compute_dtype"],
            self.settings["do_lower_case"],
            self.settings["base_dtype"],
        )


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
        name: `minilm`, the small model that `make setup` installs, `mpnet`,
            that of `make mpnet`, or what `--init_checkpoint` takes: a folder, a
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
    if not isinstance(name, (str, os.PathLike)):
        raise UserError(
            f"name is a {type(name).__name__}, expected 'minilm', "
            "'mpnet', or a model's folder, archive or handle"
        )
    named = {"minilm": minilm.folder, "mpnet": mpnet.folder}
    path = named[name]() if name in named else _path(name)
    settings = {
        "bert_config_file": _path(bert_config_file or ""),
        "vocab_file": _path(vocab_file or ""),
        "do_lower_case": do_lower_case,
        "compute_dtype": compute_dtype,
        "base_dtype": base_dtype,
    }
    with of_keywords(run_classifier.SETTINGS, settings, "load_bert()"):
        opened = sources.open_init_checkpoint(path)
        config = sources.read_config(opened, settings["bert_config_file"])
        sources.read_tokenizer(
            opened, config, settings["vocab_file"], do_lower_case
        )
    return Bert(opened.weights.hub or path, config, settings)


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
        path = os.path.join(self.output_dir, "eval_results.json")
        if not files.exists(path):
            return {}
        results = files.read_object(path, "a run's scores", RESULTS)
        return {
            name.removeprefix("eval_"): value
            for name, value in results.items()
            if name.startswith("eval_")
        }

    @property
    def curve(self) -> dict[str, Curve]:
        """Curves as lists of (step, value).

        `loss` (nats), `learning_rate` and `examples_per_second` of the
        training, and scores of the dev set, as `eval_accuracy`.
        """
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


def _folder(adapter: Any) -> str:
    if isinstance(adapter, Run):
        return adapter.adapter
    if not isinstance(adapter, (str, os.PathLike)):
        raise UserError(
            f"an adapter is a {type(adapter).__name__}, expected its folder or "
            "a Run"
        )
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
    `output_dir/test_predictions.tsv`. A training that was interrupted goes on
    if the call is repeated.

    Args:
        bert: the pretrained model.
        rows: to train on: a list of dictionaries, of tuples (texts, then the
            label), a dictionary of columns, a pandas DataFrame, a table of
            `datasets`, or a file's path. None: `data_dir` or `train_file`.
        eval_rows: of the dev set.
        predict_rows: without labels.
        task_name: `custom` for rows of your own, a GLUE task with `data_dir`,
            `tagging`, `squad`, `masked_lm` or `vectors`.
        **settings: flags of the task's program by their names (docs/flags.md),
            `output_dir` at least. Unlike in the programs, `engine` is
            `strategy` by default.

    Returns:
        The run, whose folder is `output_dir`.
    """
    tables = dict(zip(SPLITS, (rows, eval_rows, predict_rows)))
    return _run("train()", bert, task_name, tables, settings, do_train=True)


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
            None: `data_dir` or `eval_file`.
        **settings: as for `train`. `output_dir` is for the files, which are
            not kept by default.

    Returns:
        The scores by name, `loss` in nats.
    """
    folder = _folder(adapter)
    task = adapter_artifact.read_config(folder)["task"]
    name = "" if "tasks" in task else task["name"]
    with contextlib.ExitStack() as stack:
        if not settings.get("output_dir"):
            place = stack.enter_context(files.temporary_folder())
            settings = {**settings, "output_dir": os.path.join(place, "out")}
        return _run(
            "evaluate()",
            bert,
            name,
            {"eval_rows": rows},
            {"adapter": folder, **settings},
            do_train=False,
        ).scores


def _run(
    caller: str,
    bert: Bert,
    task_name: str,
    tables: Mapping[str, RowsOrPath],
    settings: Mapping[str, Any],
    do_train: bool,
) -> Run:
    _checked(bert)
    _refuse(caller, settings, OF_RUNS)
    if settings.get("adapter"):
        settings = {**settings, "adapter": _folder(settings["adapter"])}
    program = PROGRAMS.get(task_name.lower(), run_classifier)
    values = {
        **DEFAULTS,
        **bert.settings,
        "init_checkpoint": bert.init_checkpoint,
        "do_train": do_train,
    }
    if program is run_classifier:
        values["task_name"] = task_name
    tables = {name: rows for name, rows in tables.items() if rows is not None}
    if program is run_squad and {"eval_rows", "predict_rows"} <= set(tables):
        raise UserError(
            f"eval_rows and predict_rows exclude each other for {QUESTIONS}, "
            "where the rows that are scored are answered too"
        )
    with of_keywords(program.SETTINGS, settings, caller):
        columns = _columns(program, settings.get("adapter") or "")
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(files.temporary_folder())
        paths = {
            name: _file_of(name, rows, program, columns, place)
            for name, rows in tables.items()
        }
        for name, path in paths.items():
            flag = SPLITS[name]
            if program is run_squad and name == "eval_rows":
                # Questions are scored on those that are answered.
                flag = SPLITS["predict_rows"]
            if settings.get(flag) or flag in values:
                raise UserError(f"{name} and {flag} exclude each other")
            values[flag] = path
        in_memory = any(path.startswith(place) for path in paths.values())
        if in_memory and settings.get("cache_frozen_layers"):
            # Not next to a file that is deleted.
            values["frozen_layers_dir"] = settings.get("output_dir")
        if program is run_squad:
            values["do_eval"] = "eval_rows" in tables
        else:
            sources_of_dev = ("eval_file", "dev_share", "data_dir")
            values["do_eval"] = "eval_rows" in tables or any(
                settings.get(name) for name in sources_of_dev
            )
        values["do_predict"] = bool(
            "predict_rows" in tables
            or settings.get("predict_file")
            or (program is run_squad and values["do_eval"])
        )
        values.update(settings)
        with (
            _named(paths, place),
            process_options.of_a_run(),
            of_keywords(program.SETTINGS, values, caller),
        ):
            program.run()
    return Run(_path(values["output_dir"]))


@contextlib.contextmanager
def _named(paths: Mapping[str, str], place: str) -> Iterator[None]:
    """Errors have the names of rows, not the paths of their files in a folder.

    `paths` are by the rows' names.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        for name, path in paths.items():
            if path.startswith(place):
                message = message.replace(path, name)
        if message == str(error):
            raise
        raise UserError(message) from error


def _refuse(
    caller: str, settings: Mapping[str, Any], reserved: Sequence[str]
) -> None:
    for name in settings:
        if name in reserved:
            raise UserError(
                f"{caller} takes no keyword {name!r}: "
                + (
                    "it is a setting of load_bert()"
                    if name in (*OF_BERT, *OF_MEMORY)
                    else "the function's own arguments say it"
                )
            )


def _file_of(
    name: str,
    rows: RowsOrPath,
    program: Any,
    columns: tuple[Sequence[str], Sequence[str]],
    folder: str,
) -> str:
    """Gets the path of a split's file, which is written if rows are in memory.

    `columns` name the texts and the labels.
    """
    if isinstance(rows, (str, os.PathLike)):
        return _path(rows)
    # Names that tell nothing: an adapter's default name is its task's.
    path = os.path.join(folder, "train" if name == "rows" else name)
    if program is run_squad:
        memory_rows.write_questions(f"{path}.json", rows, name)
        return f"{path}.json"
    if program is run_mlm:
        memory_rows.write_lines(f"{path}.txt", rows, name)
        return f"{path}.txt"
    texts, labels = columns
    names = texts if name == "predict_rows" else [*texts, *labels]
    memory_rows.write_json_lines(f"{path}.jsonl", rows, names, name)
    return f"{path}.jsonl"


def _columns(program: Any, adapter: str) -> tuple[list[str], list[str]]:
    if program is run_vectors:
        text, *others, score = (
            getattr(read(run_vectors.Texts), name)
            for name in run_vectors.COLUMNS
        )
        return [text, *filter(None, others)], [score] if score else []
    if program not in (run_classifier, run_tagger):
        return [], []
    columns: dict[str, Any] = {}
    if adapter:
        trained = adapter_artifact.read_config(adapter)
        columns = trained.get("task_settings", {})
        if trained["task"].get("name") == CUSTOM:
            source = f"the adapter {adapter}"
            columns = custom_arguments(trained["task"], columns, source)
    if program is run_tagger:
        flags = read(tagging_files.WordColumns)
        token, tag = tagging_files.WordColumns(
            flags.token or columns.get("token_column"),
            flags.tag or columns.get("tag_column"),
        ).keys
        return [token], [tag]
    table = vars(read(custom.OwnTables))

    def named(flag: str) -> Any:
        return table[flag] if is_given(flag) else columns.get(flag, table[flag])

    texts = [named("text_a_column"), named("text_b_column")]
    labels = [] if is_given("label_column") else named("label_columns")
    return (
        [*filter(None, texts), *named("choice_columns")],
        labels or [named("label_column")],
    )


class Library(AdapterLibrary):
    """A folder of adapters on one BERT, which several processes may change."""

    def __init__(self, path: Path):
        """Opens the folder, a new one if there is none."""
        super().__init__(_path(path), create=True)


# One adapter, some of them, some by name, or all of a library.
Adapters = Union[Adapter, Sequence[Adapter], Mapping[str, Adapter], Library]


def _adapter_settings(bert: Bert, adapters: Adapters) -> dict[str, Any]:
    named = {"init_checkpoint": bert.init_checkpoint}
    if isinstance(adapters, AdapterLibrary):
        return {**named, "library": adapters.path, "task": [ALL]}
    if isinstance(adapters, Run) and len(adapters.adapters) > 1:
        adapters = adapters.adapters
    if isinstance(adapters, Mapping):
        folders = [f"{name}={_folder(one)}" for name, one in adapters.items()]
    elif isinstance(adapters, str) or not isinstance(adapters, Iterable):
        folders = [_folder(adapters)]
    else:
        folders = list(map(_folder, adapters))
    return {**named, "adapter": folders}


class Answers(list[Answer]):
    """Answers in the order of the rows."""

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row for each answer.

        Columns are the answers' members, and `scores.<label>` for each score.
        """
        try:
            import pandas
        except ImportError as error:
            raise UserError(
                "to_frame() needs pandas, which is not installed; pip install "
                "pandas"
            ) from error
        return pandas.json_normalize(list(map(dict, self)))


class Predictor:
    """Answers texts with any number of adapters on one BERT.

    Threads may call it at the same time.
    """

    @_shows_settings((Answering,), OF_ADAPTERS)
    def __init__(self, bert: Bert, adapters: Adapters, **settings: Any):
        """Loads adapters.

        Args:
            bert: the BERT that they were trained on.
            adapters: a folder or a run, several of them, also by name, or
                a library for all of it.
            **settings: flags of `adapter-bert predict` by their names, as
                `max_seq_length` (tokens), `predict_batch_size` (rows).
        """
        _refuse("Predictor()", settings, OF_ADAPTERS)
        values = {**settings, **_adapter_settings(_checked(bert), adapters)}
        classes = (Answering,)
        with (
            process_options.restored(),
            of_keywords(classes, values, "Predictor()"),
        ):
            self._bert = bert.frozen
            self._predictor = predict.open_predictor(self._bert)

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
        if not predictor.names:
            raise UserError("no adapter is loaded; add() loads one")
        if task is None:
            if len(predictor.names) != 1:
                raise UserError(
                    f"{len(predictor.names)} adapters are loaded; pass task="
                    "one of " + ", ".join(predictor.names)[:200]
                )
            [task] = predictor.names
        names = None if isinstance(task, str) else list(task)
        tasks = [task] if names is None else names or predictor.names
        first = predictor.task(tasks[0]).task
        rows = _rows_of(texts, first.columns, first.takes_tokens)
        if names is None:
            names = [task] * len(rows)
        if len(names) != len(rows):
            raise UserError(
                f"task names {len(names)} adapters for {len(rows)} rows; "
                "expected one name, or one for each row"
            )
        rows = [
            _texts_at(row, predictor.task(name).task.columns, f"row {number}")
            for number, (row, name) in enumerate(zip(rows, names), 1)
        ]
        with process_options.restored():
            devices.choose_graph_optimizer(
                Hardware(), self._bert.compute_dtype.name
            )
            return Answers(predictor.ask(list(zip(names, rows)), explain))


def _rows_of(
    texts: RowsOrPath, columns: Sequence[str], takes_tokens: bool = False
) -> list[Any]:
    if isinstance(texts, (str, tuple)):
        return [texts]
    if not isinstance(texts, os.PathLike):
        return list(memory_rows.records(texts, "texts"))
    rows = row_stream.file_rows(
        _path(texts),
        [columns, TEXT_COLUMNS[: len(columns)]],
        lambda size: None,
        takes_tokens,
    )
    return [row for row, _ in rows]


def _texts_at(row: Any, columns: Sequence[str], where: str) -> Any:
    """A row's texts; a dictionary's in a task's or the usual columns."""
    if not isinstance(row, Mapping):
        return row
    for names in (columns, TEXT_COLUMNS[: len(columns)]):
        if len(names) == len(columns) and set(names) <= set(row):
            return tuple(
                tuple(text) if isinstance(text, list) else text
                for text in map(row.get, names)
            )
    raise UserError(
        f"{where}: found the columns {json_lines.list_keys(row)}, expected "
        f"{json_lines.list_keys(columns)}"
    )


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
        "layers": layers,
        "normalize": normalize,
        "vector_size": vector_size,
        "prompt": prompt,
        "predict_batch_size": predict_batch_size,
        "max_seq_length": max_seq_length,
    }
    folder = None if adapter is None else _folder(adapter)
    with of_keywords((Answering, Embedding), values, "embed()"):
        answering, vectors = read(Answering), read(Embedding)
    numbers = adapter_flags.read_layers(vectors)
    form = VectorForm(
        pooling or embeddings.MEAN,
        numbers,
        vectors.normalize,
        vectors.vector_size,
    )
    form.check(_checked(bert).config)
    task = None
    with process_options.restored():
        frozen = bert.frozen
        devices.choose_graph_optimizer(Hardware(), frozen.compute_dtype.name)
        if folder is not None:
            task = load_task(frozen, folder, answering.max_seq_length)
        columns = task.task.columns if task else TEXT_COLUMNS[:1]
        rows = [
            _texts_at(
                row,
                TEXT_COLUMNS
                if not task and isinstance(row, Mapping) and "text_b" in row
                else columns,
                f"row {number}",
            )
            for number, row in enumerate(_rows_of(texts, columns), 1)
        ]
        return embeddings.embed(
            frozen,
            rows,
            task=task,
            pooling=pooling,
            layers=form.layers,
            normalize=form.normalize,
            size=form.size,
            prompt=vectors.prompt,
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
    caller, program = "audit()", audit_program
    _refuse(caller, settings, (*OF_RUNS, "train_file"))
    values = {
        **_checked(bert).settings,
        "init_checkpoint": bert.init_checkpoint,
        "task_name": task_name,
        **settings,
    }
    with files.temporary_folder() as place:
        values["output_dir"] = settings.get("output_dir") or os.path.join(
            place, "out"
        )
        paths: dict[str, str] = {}
        if rows is not None:
            with of_keywords(program.SETTINGS, settings, caller):
                columns = _columns(run_classifier, "")
            paths["rows"] = _file_of(
                "rows", rows, run_classifier, columns, place
            )
            values["train_file"] = paths["rows"]
        with (
            _named(paths, place),
            process_options.of_a_run(),
            of_keywords(program.SETTINGS, values, caller),
        ):
            return program.run()


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
        pool: rows without labels, as for `Predictor.predict`.
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
    named = [columns] if isinstance(columns, str) else list(columns)
    values = {
        "init_checkpoint": _checked(bert).init_checkpoint,
        "adapter": [] if adapter is None else [_folder(adapter)],
        "count": count,
        "by": by,
        "columns": named,
        "max_seq_length": max_seq_length,
        "predict_batch_size": predict_batch_size,
    }
    with files.temporary_folder() as place:
        if isinstance(pool, os.PathLike):
            path = _path(pool)
        else:
            path = os.path.join(place, "pool.jsonl")
            is_one = isinstance(pool, (str, tuple))
            rows = [pool] if is_one else list(memory_rows.records(pool, "pool"))
            if rows and not isinstance(rows[0], Mapping):
                is_text = isinstance(rows[0], str)
                texts = TEXT_COLUMNS[:1] if is_text else TEXT_COLUMNS
                values["columns"] = named or texts
            memory_rows.write_json_lines(path, rows, values["columns"], "pool")
        values["pool"] = path
        classes = select_program.SETTINGS
        with (
            _named({"pool": path}, place),
            process_options.restored(),
            of_keywords(classes, values, "select()"),
        ):
            selection, frozen = read(select_program.Selection), bert.frozen
            devices.choose_graph_optimizer(
                Hardware(), frozen.compute_dtype.name
            )
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
    _refuse("export()", settings, OF_ADAPTERS)
    values = {
        **settings,
        **_adapter_settings(_checked(bert), adapters),
        "output_dir": output_dir,
    }
    program = export_program
    with (
        process_options.restored(),
        of_keywords(program.SETTINGS, values, "export()"),
    ):
        devices.choose_graph_optimizer(
            Hardware(), bert.frozen.compute_dtype.name
        )
        return program.run(bert.frozen)
