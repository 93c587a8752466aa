"""A library's adapters, trained anew on another BERT by distillation.

The old adapters answer texts without labels. New adapters of the same methods
learn these outputs on the new BERT (`tasks/distillation.py`), each in a run of
its own, which goes on after a kill.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.answering import row_stream
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.joint_answers import compute_alone
from adapter_bert.answering.row_stream import CHUNK
from adapter_bert.answering.trained_task import LoadedTask, check_row, load_task
from adapter_bert.checkpoints import (
    adapter_artifact,
    run_record,
    training_state,
)
from adapter_bert.checkpoints.bert_flags import BertFiles
from adapter_bert.data.divisions import HeldOut, number_texts
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.tables import READERS, Rows, SplitFiles, check_file
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE_NUMBER, Range, Topic, recorded
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.library.flags import split_name
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.per_task import PerTask
from adapter_bert.progress import Progress
from adapter_bert.tasks import metrics
from adapter_bert.tasks.distillation import distilled
from adapter_bert.tasks.kinds import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    kind_of,
)
from adapter_bert.tasks.task import write_table
from adapter_bert.tasks.text_task import TEXT_COLUMNS, Calibration, TextTask
from adapter_bert.training import experiment as experiments
from adapter_bert.training.prediction import Outputs, check_finite
from adapter_bert.training.run_files import write_results
from adapter_bert.training.settings import ADAPTER, Experiment, Training

# Kinds whose heads have `distillation_loss`.
MOVABLE = CLASSIFICATION, MULTI_LABEL, REGRESSION
# Runs in the new library.
WORK_FOLDER = ".move"
TABLE_FILE, RECORD_FILE = "move.tsv", "move.json"
# Rows that are answered at once.
BATCH = 32
# Of those that train, and of those that measure: two have a correlation.
LEAST_TEXTS = 2


@dataclasses.dataclass(frozen=True)
class Move(BertFiles):
    """Trains the adapters anew on another BERT, from texts."""

    REQUIRED = ("init_checkpoint", "to", "output_dir", "texts")
    # They need a dev set.
    REFUSED = ("eval_steps", "keep_best", "early_stopping")
    to: str = Topic.MODEL.setting("", "The other BERT, as --init_checkpoint.")
    output_dir: str = Topic.TO_DO.setting(
        "", "Folder of the new library, new or of a move that was killed."
    )
    texts: list[str] = Topic.DATA.setting(
        [],
        "File of texts without labels, that the old adapters answer; repeat it "
        "as NAME=FILE for texts of the adapter NAME.",
        repeated=True,
    )
    dev: list[str] = Topic.DATA.setting(
        [],
        "NAME=FILE: labelled rows of an adapter's task, which score the old "
        "and the new one.",
        repeated=True,
    )
    temperature: float = Topic.TRAINING.setting(
        2.0,
        "What the logits of old and new adapters are divided by.",
        POSITIVE_NUMBER,
    )
    held_out: float = Topic.DATA.setting(
        0.1,
        "Share of the texts that measures the agreement and does not train.",
        Range(lambda value: 0 < value < 1, "expected above 0 and below 1"),
    )
    training: Training = dataclasses.field(default_factory=Training)


@dataclasses.dataclass(frozen=True)
class Moved:
    """A result of moving an adapter.

    Attributes:
        name: in both libraries.
        method: of both adapters.
        texts: number of rows that trained.
        held_out: number of rows that measured.
        measure: of the agreement: `equal`, the share of rows with equal labels,
            or `pearson`, the correlation of numbers.
        agreement: of the held out rows' old and new answers.
        old: scores of the old adapter on dev rows; empty without any.
        new: scores of the new one.
    """

    name: str
    method: str
    texts: int
    held_out: int
    measure: str
    agreement: float
    old: Mapping[str, float]
    new: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class _Adapter:
    """An adapter to be moved.

    Attributes:
        name: in both libraries.
        old: it, on the old BERT, without its calibration and novelty.
        method: that trains the new one.
        texts: the rows that the old one answers.
        dev: labelled rows, or None.
    """

    name: str
    old: LoadedTask
    method: TuningMethod
    texts: Rows
    dev: Optional[Rows]


def move(library: AdapterLibrary, settings: Move) -> list[Moved]:
    """Moves the adapters of a library that can be moved.

    The others are logged, each with the reason. The same call goes on where a
    killed process was, with the same bits.

    Returns:
        The adapters of the new library, in order.
    """
    for name in settings.REFUSED:
        if getattr(settings.training, name):
            raise UserError(
                f"--{name} needs a dev set, and a move trains without one; "
                "leave it out"
            )
    output_dir = settings.output_dir
    work = os.path.join(output_dir, WORK_FOLDER)
    names = files.plain_names(output_dir) if files.is_folder(output_dir) else []
    # The library itself may be what another move has made.
    if names and (
        not files.is_folder(work) or files.is_same(output_dir, library.path)
    ):
        raise UserError(
            f"{output_dir} holds {names[0]}; expected a new or empty folder, "
            "or one in which this move has begun"
        )
    texts = _files_by_name("--texts", settings.texts, library.names())
    dev = _files_by_name("--dev", settings.dev, library.names())
    old = FrozenBert.open(
        settings.init_checkpoint, settings.bert_config_file, settings.vocab_file
    )
    new = FrozenBert.open(settings.to)
    if new.base.fingerprint == old.base.fingerprint:
        raise UserError(
            f"--to is {settings.to}, the BERT of the library {library.path} "
            "itself; expected another one"
        )
    adapters = _choose(library, old, new, texts, dev)
    target = AdapterLibrary(output_dir, create=True)
    files.prepare_folder(work)
    with folder_lock.hold(work):
        moved = []
        for adapter in adapters:
            run_folder = os.path.join(work, "runs", adapter.name)
            moved.append(_move(adapter, new, settings, run_folder))
            target.add(os.path.join(run_folder, ADAPTER), adapter.name)
        write_table(os.path.join(output_dir, TABLE_FILE), table(moved))
        files.write_json(
            os.path.join(output_dir, RECORD_FILE),
            {
                "old_base": old.base.describe(),
                "new_base": new.base.describe(),
                "temperature": settings.temperature,
                "held_out": settings.held_out,
                "training": recorded(settings.training),
                "adapters": [dataclasses.asdict(one) for one in moved],
            },
        )
    return moved


def _files_by_name(
    flag: str, texts: Sequence[str], names: Sequence[str]
) -> dict[str, str]:
    """Files of `NAME=FILE`, and under "" of a `FILE` alone."""
    paths: dict[str, str] = {}
    for text in texts:
        name, path = split_name(text)
        if not name and flag == "--dev":
            raise UserError(
                f"--dev is {path}; expected --dev=NAME=FILE, an adapter and a "
                "file of labelled rows of its task"
            )
        if name and name not in names:
            raise UserError(
                f"{flag} names the adapter {name!r}; the library has: "
                f"{', '.join(names)[:200] or 'none'}"
            )
        if name in paths:
            raise UserError(
                f"{flag} names two files for {name or 'all adapters'}: "
                f"{paths[name]} and {path}; leave one out"
            )
        paths[name] = path
    return paths


def _choose(
    library: AdapterLibrary,
    old: FrozenBert,
    new: FrozenBert,
    texts: Mapping[str, str],
    dev: Mapping[str, str],
) -> list[_Adapter]:
    adapters = []
    for name in library.names():
        config = adapter_artifact.read_config(library.folder(name))
        if config.get("parts"):
            # They may not be there.
            logging.warning(
                "%s is not moved: it is made of other trained adapters, of "
                "the old BERT",
                name,
            )
            continue
        loaded = load_task(old, library.folder(name), None, library.path)
        method = registry.parse(config.get("trained_with") or config["method"])
        if isinstance(method, PerTask):
            # It is of several tasks, and the adapter is of one.
            method = registry.parse(config["method"])
        problem = _problem(config, method, loaded, new)
        if problem:
            logging.warning("%s is not moved: %s", name, problem)
            continue
        is_calibrated = loaded.task.calibration != Calibration()
        has_thresholds = getattr(loaded.task, "thresholds", None)
        fitted = {"thresholds": None} if has_thresholds else {}
        if is_calibrated or loaded.task.novelty or fitted:
            logging.warning(
                "calibration, thresholds and novelty of %s are left out: they "
                "are told by what the old BERT computes",
                name,
            )
        task = dataclasses.replace(
            loaded.task, calibration=Calibration(), novelty=None, **fitted
        )
        loaded = dataclasses.replace(loaded, task=task)
        path = texts.get(name, texts.get(""))
        if path is None:
            raise UserError(
                f"no --texts are for the adapter {name}; pass --texts=FILE for "
                f"all adapters, or --texts={name}=FILE too"
            )
        rows = _read_texts(path, name, loaded)
        dev_rows = _read_dev(dev[name], name, task) if name in dev else None
        adapters.append(_Adapter(name, loaded, method, rows, dev_rows))
    if not adapters:
        raise UserError(
            f"the library {library.path} has no adapter that can be moved; "
            f"expected one for {', '.join(MOVABLE)}, on this BERT alone"
        )
    return adapters


def _problem(
    config: Mapping[str, Any],
    method: TuningMethod,
    loaded: LoadedTask,
    new: FrozenBert,
) -> str:
    """Says why an adapter cannot be moved, or ""."""
    kind = kind_of(config["task"])
    if kind not in MOVABLE:
        return f"its kind is {kind}, expected {', '.join(MOVABLE)}"
    if len(loaded.numbers_of_texts) > 1:
        return (
            "its files do not tell whether its rows are pairs; import it "
            "again with --texts=one or --texts=two"
        )
    if loaded.task.window_stride:
        return "it reads long texts in windows (window_stride)"
    if run_record.new_tokens(config, loaded.task.name):
        return "it has new words, of the old BERT's vocabulary"
    try:
        new.kind(method, loaded.task)
    except UserError as error:
        return f"the new BERT cannot take its method: {error}"
    return ""


def _read_texts(path: str, name: str, loaded: LoadedTask) -> Rows:
    columns = loaded.task.columns
    alternatives = [columns, TEXT_COLUMNS[: len(columns)]]
    rows = []
    try:
        for row, where in row_stream.file_rows(path, alternatives, lambda _: 0):
            check_row(row, loaded, where)
            rows.append(row)
    except UserError as error:
        raise UserError(
            f"--texts do not fit the adapter {name}, which reads "
            f"{' and '.join(columns)}: {error}"
        ) from error
    count = len(set(number_texts(rows).tolist()))
    if count < 2 * LEAST_TEXTS:
        raise UserError(
            f"--texts: {path} holds {count} different texts for the adapter "
            f"{name}, expected at least {2 * LEAST_TEXTS}"
        )
    return loaded.task.make_rows(rows)


def _read_dev(path: str, name: str, task: TextTask) -> Rows:
    check_file(f"--dev of {name}", path, READERS)
    named = dataclasses.replace(task, split_files=SplitFiles(dev=path))
    return named.read("", ["dev"])[1]["dev"]


def _compute(loaded: LoadedTask, rows: Rows) -> tuple[Features, Outputs]:
    """Computes features, and outputs of the head [rows, ...] by name."""
    features = loaded.task.featurize(
        rows, loaded.tokenizer, loaded.max_seq_length
    )
    outputs = compute_alone(loaded, features.unlabelled(), BATCH)
    check_finite(outputs, loaded.task.name)
    return features, outputs


def _old_outputs(adapter: _Adapter) -> Outputs:
    rows = adapter.texts
    progress = Progress("old answers", len(rows), "rows")
    chunks = []
    for first in range(0, len(rows), CHUNK):
        place = np.arange(len(rows)) // CHUNK == first // CHUNK
        chunks.append(_compute(adapter.old, rows.take(place))[1])
        progress.update(int(place.sum()), adapter.name)
    progress.close()
    return {
        name: np.concatenate([chunk[name] for chunk in chunks])
        for name in chunks[0]
    }


def _hold_out(rows: Rows, settings: Move) -> np.ndarray:
    """Chooses rows that measure, bool [rows]; equal texts stay together."""
    least = LEAST_TEXTS / len(set(number_texts(rows.texts).tolist()))
    share = min(max(settings.held_out, least), 1 - least)
    division = HeldOut(share, settings.training.seed)
    return division.choose(rows.texts, [()] * len(rows))


def _move(
    adapter: _Adapter, new: FrozenBert, settings: Move, run_folder: str
) -> Moved:
    name, old = adapter.name, adapter.old
    outputs = _old_outputs(adapter)
    is_held_out = _hold_out(adapter.texts, settings)
    taught = {key: values[~is_held_out] for key, values in outputs.items()}
    experiments.run(
        Experiment(
            task=distilled(
                old.task,
                adapter.texts.take(~is_held_out),
                taught,
                settings.temperature,
            ),
            method=adapter.method,
            named_method=None,
            named_arguments={},
            max_seq_length=min(old.max_seq_length, new.config.max_tokens),
            do_train=True,
            # Names the data in descriptions.
            data_dir=name,
            output_dir=run_folder,
            init_checkpoint=settings.to,
            training=settings.training,
            # Models that follow one another share its process.
            engine="strategy",
        )
    )
    folder = os.path.join(run_folder, ADAPTER)
    trained = load_task(new, folder, None)
    rows = adapter.texts.take(is_held_out)
    features, new_outputs = _compute(trained, rows)
    held_out = {key: values[is_held_out] for key, values in outputs.items()}
    answers = (
        old.task.answer(rows, old.task.decode(rows, features, values))
        for values in (held_out, new_outputs)
    )
    config = adapter_artifact.read_config(folder)
    old_scores: dict[str, float] = {}
    new_scores: dict[str, float] = {}
    if adapter.dev is not None:
        old_scores, _ = _score(old, adapter.dev)
        new_scores, data = _score(trained, adapter.dev)
        step = training_state.step_of(config["checkpoint"])
        write_results(run_folder, new_scores, step, {"dev": data})
    return Moved(
        name,
        config["method"],
        len(adapter.texts) - len(rows),
        len(rows),
        *_agreement(*answers),
        old_scores,
        new_scores,
    )


def _score(loaded: LoadedTask, rows: Rows) -> tuple[dict[str, float], str]:
    features, outputs = _compute(loaded, rows)
    predictions = loaded.task.decode(rows, features, outputs)
    scores = loaded.task.evaluate(rows, features, predictions)
    return scores, features.fingerprint()


def _agreement(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> tuple[str, float]:
    # A label, labels, or a value comes first.
    first, second = ([next(iter(x.values())) for x in of] for of in (old, new))
    if "value" in old[0]:
        return "pearson", metrics.pearson(np.array(first), np.array(second))
    equal = [a == b for a, b in zip(first, second)]
    return "equal", float(np.mean(equal))


def table(moved: Sequence[Moved]) -> list[list[str]]:
    """Makes rows of cells, a header first; scores are the task's main one."""
    rows = ["name method texts held_out measure agreement".split()]
    rows[0] += ["score", "old", "new"]
    for one in moved:
        score = next(iter(one.old), "")
        values = [
            f"{x[score]:.4f}" if score else "-" for x in (one.old, one.new)
        ]
        rows.append(
            [one.name, one.method, str(one.texts), str(one.held_out)]
            + [one.measure, f"{one.agreement:.4f}", score or "-", *values]
        )
    return rows
