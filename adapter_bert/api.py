"""The programs as functions, for notebooks and services: `import adapter_bert`.

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
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np

from adapter_bert import files, json_lines
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import adapter_artifact, run_record, sources
from adapter_bert.commands import export as export_program
from adapter_bert.commands import (
    minilm,
    predict,
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
)
from adapter_bert.data import memory_rows
from adapter_bert.errors import UserError
from adapter_bert.flags import declared, of_keywords
from adapter_bert.reports.report_run import Curve, read_curves
from adapter_bert.serving import embeddings, row_stream
from adapter_bert.serving.answers import Answer
from adapter_bert.serving.embeddings import TokenVectors
from adapter_bert.serving.flags import Answering
from adapter_bert.serving.frozen_bert import FrozenBert
from adapter_bert.serving.library import ALL, RESULTS, AdapterLibrary
from adapter_bert.serving.trained_task import load_task
from adapter_bert.tasks import masked_lm, tagging
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.text_task import TEXT_COLUMNS
from adapter_bert.training import devices, process_options
from adapter_bert.training.engines import Hardware
from adapter_bert.training.run_files import ADAPTER

Path = Union[str, "os.PathLike[str]"]
# Rows in memory, as of `data/memory_rows.py`, or a file's path.
Table = Any
Function = TypeVar("Function", bound=Callable)
CUSTOM, QUESTIONS = run_classifier.CUSTOM, "squad"
# Programs by the tasks that they alone have.
PROGRAMS: Dict[str, Any] = {
    tagging.NAME: run_tagger,
    QUESTIONS: run_squad,
    masked_lm.NAME: run_mlm,
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
OF_ADAPTERS = (*OF_BERT, "compute_dtype", "adapter", "task", "output_dir")


def _shows_settings(
    classes: Sequence[type], without: Sequence[str]
) -> Callable[[Function], Function]:
    """Adds settings to a function's signature, for help and completion."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=[]
                if field.default is dataclasses.MISSING
                else field.default,
                annotation=field.type,
            )
            for name, _, field in declared(classes)
            if name not in (*without, *signature.parameters)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])
        return function

    return decorate


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
        """The BERT in memory, which all predictors share; read at first use.

        Raises:
            UserError: as of `FrozenBert.open`.
        """
        return FrozenBert.open(
            self.init_checkpoint,
            self.settings["bert_config_file"],
            self.settings["vocab_file"],
            self.settings["compute_dtype"],
        )


def load_bert(
    name: Path,
    *,
    bert_config_file: Path = "",
    vocab_file: Path = "",
    do_lower_case: Optional[bool] = None,
    compute_dtype: str = "float32",
) -> Bert:
    """Opens a pretrained BERT, RoBERTa or XLM-R.

    Args:
        name: `minilm`, the small model that `make setup` installs, or what
            `--init_checkpoint` takes: a folder, a checkpoint, an archive, or
            a module's handle.
        bert_config_file: JSON file of the sizes; default: next to the model.
        vocab_file: the vocabulary; default: next to the model.
        do_lower_case: whether texts are lower-cased; default: what the model
            or its vocabulary says.
        compute_dtype: `float32`, `bfloat16` or `auto`, of products and
            activations.

    Raises:
        UserError: the model, its config or its vocabulary is missing or
            damaged.
    """
    path = minilm.folder() if name == "minilm" else os.fspath(name)
    settings = {
        "bert_config_file": os.fspath(bert_config_file),
        "vocab_file": os.fspath(vocab_file),
        "do_lower_case": do_lower_case,
        "compute_dtype": compute_dtype,
    }
    with of_keywords(run_classifier.SETTINGS, settings, "load_bert()"):
        opened = sources.open_init_checkpoint(path)
        config = sources.read_config(opened, settings["bert_config_file"])
        sources.read_tokenizer(
            opened, config, settings["vocab_file"], do_lower_case
        )
    return Bert(path, config, settings)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder, with what was written there as values.

    `Run("out/tickets")` reads a folder that an earlier process wrote. All
    attributes raise `UserError` where a file is damaged.
    """

    output_dir: str

    @property
    def scores(self) -> Dict[str, float]:
        """The dev set's scores by name, `loss` in nats; empty without one."""
        path = os.path.join(self.output_dir, "eval_results.json")
        if not files.exists(path):
            return {}
        found = files.read_object(path, "a run's scores", RESULTS)
        return {
            name.removeprefix("eval_"): value
            for name, value in found.items()
            if name.startswith("eval_")
        }

    @property
    def curve(self) -> Dict[str, Curve]:
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
        """The trained adapter's folder.

        Raises:
            UserError: there is none, or there is one of each of several tasks.
        """
        found = self.adapters
        if len(found) != 1:
            raise UserError(
                f"{self.output_dir} holds {len(found)} adapters"
                + f" ({', '.join(found)})" * bool(found)
                + ", expected one; Run.adapters has each by its task"
            )
        return next(iter(found.values()))

    @property
    def adapters(self) -> Dict[str, str]:
        """The folder of each trained adapter, by its task's name."""
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
    def settings(self) -> Dict[str, Any]:
        """The run's description, `run.json`: settings, engine, versions.

        Raises:
            UserError: the folder holds no run.
        """
        found = run_record.read_run(self.output_dir)
        if found is None:
            raise UserError(
                f"{self.output_dir} holds no {run_record.RUN_FILE}; expected "
                "the output_dir of a training"
            )
        return found

    @property
    def engine(self) -> str:
        """The engine that trained, `StrategyEngine` or `EstimatorEngine`."""
        return self.settings["versions"]["engine"]


@_shows_settings(run_classifier.SETTINGS, OF_RUNS)
def train(
    bert: Bert,
    rows: Table = None,
    eval_rows: Table = None,
    predict_rows: Table = None,
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
            `tagging`, `squad` or `masked_lm`.
        **settings: flags of the task's program by their names (docs/flags.md),
            `output_dir` at least. Unlike in the programs, `engine` is
            `strategy` by default.

    Returns:
        The run, whose folder is `output_dir`.

    Raises:
        UserError: a keyword is unknown, a value or a row is not as expected,
            or the folder holds another run. The text is the program's.
    """
    given = dict(zip(SPLITS, (rows, eval_rows, predict_rows)))
    return _run("train()", bert, task_name, given, settings, do_train=True)


@_shows_settings(run_classifier.SETTINGS, (*OF_RUNS, "adapter"))
def evaluate(
    bert: Bert, adapter: Path, rows: Table = None, **settings: Any
) -> Dict[str, float]:
    """Scores a trained adapter on labelled rows.

    Args:
        bert: the BERT that the adapter was trained on.
        adapter: its folder.
        rows: as of `train`; None: `data_dir` or `eval_file`.
        **settings: as of `train`. `output_dir` is for the files, which are
            not kept by default.

    Returns:
        The scores by name, `loss` in nats.

    Raises:
        UserError: as of `train`, or the adapter is damaged or of another BERT.
    """
    folder = os.fspath(adapter)
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
    given: Mapping[str, Table],
    settings: Mapping[str, Any],
    do_train: bool,
) -> Run:
    """Runs a task's program with these settings and rows by split."""
    _refuse(caller, settings, OF_RUNS)
    program = PROGRAMS.get(task_name.lower(), run_classifier)
    values = {
        "engine": "strategy",
        **bert.settings,
        "init_checkpoint": bert.init_checkpoint,
        "do_train": do_train,
    }
    if program is run_classifier:
        values["task_name"] = task_name
    given = {name: rows for name, rows in given.items() if rows is not None}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(files.temporary_folder())
        paths = {
            name: _file_of(name, rows, program, settings, place)
            for name, rows in given.items()
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
            values["do_eval"] = "eval_rows" in given
        else:
            sources_of_dev = ("eval_file", "dev_share", "data_dir")
            values["do_eval"] = "eval_rows" in given or any(
                settings.get(name) for name in sources_of_dev
            )
        values["do_predict"] = bool(
            "predict_rows" in given
            or settings.get("predict_file")
            or (program is run_squad and values["do_eval"])
        )
        values.update(settings)
        try:
            with process_options.restored():
                with of_keywords(program.SETTINGS, values, caller):
                    program.run()
        except UserError as error:
            message = str(error)
            for name, path in paths.items():
                if path.startswith(place):
                    message = message.replace(path, name)
            if message == str(error):
                raise
            raise UserError(message) from error
    return Run(os.fspath(values["output_dir"]))


def _refuse(
    caller: str, settings: Mapping[str, Any], own: Sequence[str]
) -> None:
    """Refuses keywords that other arguments stand for."""
    for name in settings:
        if name in own:
            raise UserError(
                f"{caller} takes no keyword {name!r}: "
                + (
                    "it is a setting of load_bert()"
                    if name in (*OF_BERT, "compute_dtype")
                    else "the function's own arguments say it"
                )
            )


def _file_of(
    name: str,
    rows: Table,
    program: Any,
    settings: Mapping[str, Any],
    folder: str,
) -> str:
    """The path of a split's file, which is written if rows are in memory."""
    if isinstance(rows, (str, os.PathLike)):
        return os.fspath(rows)
    # Names that tell nothing: an adapter's default name is its task's.
    path = os.path.join(folder, "train" if name == "rows" else name)
    if program is run_squad:
        memory_rows.write_questions(f"{path}.json", rows, name)
        return f"{path}.json"
    if program is run_mlm:
        memory_rows.write_lines(f"{path}.txt", rows, name)
        return f"{path}.txt"

    def setting(key: str, default: Any) -> Any:
        return settings.get(key) or default

    if program is run_tagger:
        columns = [
            setting("token_column", "tokens"),
            setting("tag_column", "tags"),
        ]
    else:
        texts = setting("text_a_column", "text"), setting("text_b_column", "")
        label = setting("label_column", "label")
        columns = [
            *filter(None, texts),
            *setting("choice_columns", ()),
            *setting("label_columns", [label]),
        ]
    if name == "predict_rows":
        columns = columns[:1] if program is run_tagger else columns[:-1]
    memory_rows.write_json_lines(f"{path}.jsonl", rows, columns, name)
    return f"{path}.jsonl"


class Library(AdapterLibrary):
    """A folder of adapters on one BERT, which several processes may change."""

    def __init__(self, path: Path):
        """Opens the folder, a new one if there is none.

        Raises:
            UserError: the folder is not on a local disk, or cannot be written.
        """
        super().__init__(os.fspath(path), create=True)


# A folder, some of them, folders by name, or all adapters of a library.
Adapters = Union[Path, Sequence[Path], Mapping[str, Path], Library, Run]


def _adapter_settings(bert: Bert, adapters: Adapters) -> Dict[str, Any]:
    """The flags that name a BERT and adapters."""
    named = {"init_checkpoint": bert.init_checkpoint}
    if isinstance(adapters, AdapterLibrary):
        return {**named, "library": adapters.path, "task": [ALL]}
    if isinstance(adapters, Run):
        found = adapters.adapters
        adapters = found if len(found) > 1 else adapters.adapter
    if isinstance(adapters, (str, os.PathLike)):
        adapters = [adapters]
    if isinstance(adapters, Mapping):
        folders = [f"{n}={os.fspath(f)}" for n, f in adapters.items()]
    else:
        folders = list(map(os.fspath, adapters))
    return {**named, "adapter": folders}


class Answers(List[Answer]):
    """Answers in the order of the rows."""

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row for each answer.

        Columns are the answers' members, and `scores.<label>` for each score.

        Raises:
            UserError: pandas is not installed.
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
            adapters: a folder, folders, folders by name, a run, or all of a
                library.
            **settings: flags of `adapter-bert predict` by their names, as
                `max_seq_length` (tokens), `predict_batch_size` (rows).

        Raises:
            UserError: an adapter is missing, damaged or of another BERT, two
                have one name, or a setting is not as expected.
        """
        _refuse("Predictor()", settings, OF_ADAPTERS)
        values = {**settings, **_adapter_settings(bert, adapters)}
        classes = (Answering,)
        with (
            process_options.restored(),
            of_keywords(classes, values, "Predictor()"),
        ):
            self._bert = bert.frozen
            self._predictor = predict.open_predictor(self._bert)

    @property
    def names(self) -> List[str]:
        """The names of the adapters."""
        return self._predictor.names

    def add(self, adapter: Path, name: Optional[str] = None) -> str:
        """Loads another adapter, or replaces the one of this name.

        Returns:
            The name, by default the task's.

        Raises:
            UserError: the adapter is missing, damaged or of another BERT.
        """
        with process_options.restored():
            return self._predictor.add(os.fspath(adapter), name)

    def remove(self, name: str) -> None:
        """Unloads an adapter; raises UserError if none has this name."""
        self._predictor.remove(name)

    def predict(
        self, texts: Table, task: Union[None, str, Sequence[str]] = None
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

        Raises:
            UserError: no adapter has the name, several are loaded and none is
                named, or a row does not fit the task.
        """
        predictor = self._predictor
        if task is None:
            if len(predictor.names) != 1:
                raise UserError(
                    f"{len(predictor.names)} adapters are loaded; pass task="
                    "one of " + ", ".join(predictor.names)[:200]
                )
            [task] = predictor.names
        names = None if isinstance(task, str) else list(task)
        first = predictor.task(names[0] if names else task).task
        rows = _rows_of(texts, first)
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
            return Answers(predictor.ask(list(zip(names, rows))))


def _rows_of(texts: Table, first: Task) -> List[Any]:
    """Rows of any form; a file's columns are those of the first task."""
    if isinstance(texts, (str, tuple)):
        return [texts]
    if not isinstance(texts, os.PathLike):
        return list(memory_rows.records(texts, "texts"))
    columns = [first.columns, TEXT_COLUMNS[: len(first.columns)]]
    found = row_stream.file_rows(
        os.fspath(texts), columns, lambda size: None, first.takes_tokens
    )
    return [row for row, _ in found]


def _texts_at(row: Any, columns: Sequence[str], where: str) -> Any:
    """A row's texts; of a dictionary those of a task's or the usual columns."""
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
    texts: Table,
    *,
    adapter: Optional[Path] = None,
    pooling: str = embeddings.MEAN,
    layers: Sequence[int] = (-1,),
    normalize: bool = False,
    predict_batch_size: int = 32,
    max_seq_length: Optional[int] = None,
) -> Union[np.ndarray, List[TokenVectors]]:
    """Computes the vectors of texts, from hidden states of BERT.

    Args:
        bert: the model.
        texts: a list of texts or pairs of texts, or a table with the columns
            `text` and for pairs `text_b`.
        adapter: folder of an adapter that acts on BERT; default: BERT alone.
        pooling: `mean` of the tokens, `cls` (the first token) or `tokens`.
        layers: numbered as Python's lists are, -1 the last one; vectors of
            several are concatenated.
        normalize: whether each vector has the length 1.
        predict_batch_size: rows computed at once.
        max_seq_length: longest input in tokens; default: the adapter's, else
            BERT's.

    Returns:
        float32 [N, D * number of layers]; for `tokens` a list of each row's
        `tokens` and `vectors`, float32 [T, D * number of layers].

    Raises:
        UserError: an argument or a row is not as expected, or the adapter is
            missing, damaged or of another BERT.
    """
    task = None
    with process_options.restored():
        frozen = bert.frozen
        devices.choose_graph_optimizer(Hardware(), frozen.compute_dtype.name)
        if adapter is not None:
            task = load_task(frozen, os.fspath(adapter), max_seq_length)
        rows = [
            tuple(row[name] for name in TEXT_COLUMNS if name in row)
            if isinstance(row, Mapping)
            else row
            for row in memory_rows.records(texts, "texts")
        ]
        return embeddings.embed(
            frozen,
            rows,
            task=task,
            pooling=pooling,
            layers=layers,
            normalize=normalize,
            batch_size=predict_batch_size,
            max_seq_length=max_seq_length,
        )


@_shows_settings((Answering,), OF_ADAPTERS)
def export(
    bert: Bert, adapters: Adapters, output_dir: Path, **settings: Any
) -> str:
    """Writes adapters and their BERT as a SavedModel that takes text.

    Args:
        bert: the BERT that the adapters were trained on.
        adapters: as of `Predictor`.
        output_dir: folder for the model's versions: 1, 2, ...
        **settings: flags of `adapter-bert export` by their names.

    Returns:
        The folder of the new version, which `adapter-bert serve` and
        TensorFlow Serving load.

    Raises:
        UserError: an adapter is missing, damaged or of another BERT, or its
            task cannot be exported, or the folder holds other files.
    """
    _refuse("export()", settings, OF_ADAPTERS)
    values = {
        **settings,
        **_adapter_settings(bert, adapters),
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
