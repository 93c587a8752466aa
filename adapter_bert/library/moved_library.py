"""A library's adapters, trained anew on another BERT by distillation.

The old adapters answer texts without labels. New adapters of the same methods
learn these outputs on the new BERT (`tasks/distillation.py`). Adapters of one
method are trained in one run, whose batches mix rows of all tasks. What is done
already is found again after a kill.
"""

import dataclasses
import hashlib
import io
import itertools
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.answering import row_stream
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.joint_answers import Group, compute
from adapter_bert.answering.row_stream import CHUNK
from adapter_bert.answering.task_tables import MixedBert
from adapter_bert.answering.trained_task import (
    LoadedTask,
    TextRow,
    check_row,
    load_task,
)
from adapter_bert.checkpoints import (
    adapter_artifact,
    run_record,
    training_state,
)
from adapter_bert.data.tables import READERS, Rows, SplitFiles, check_file
from adapter_bert.errors import UserError
from adapter_bert.flags import POSITIVE_NUMBER, Range, Topic, recorded
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.methods.per_task import PerTask
from adapter_bert.progress import Progress
from adapter_bert.tasks import metrics, task_model
from adapter_bert.tasks.calibration import Calibration
from adapter_bert.tasks.distillation import Distillation
from adapter_bert.tasks.kinds import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    kind_of,
)
from adapter_bert.tasks.multi_task import FOLDER
from adapter_bert.tasks.task import Task, write_table
from adapter_bert.tasks.text_task import TEXT_COLUMNS, TextTask
from adapter_bert.training import experiment as experiments
from adapter_bert.training.prediction import Outputs, check_finite
from adapter_bert.training.run_files import ADAPTER, write_results
from adapter_bert.training.settings import Experiment, Training

# Kinds whose heads have `distillation_loss`.
MOVABLE = CLASSIFICATION, MULTI_LABEL, REGRESSION
# In the new library: old answers, runs.
WORK_FOLDER = ".move"
TABLE_FILE, RECORD_FILE = "move.tsv", "move.json"
# Rows that are answered at once.
BATCH = 32
# Of those that train, and of those that measure: two have a correlation.
LEAST_ROWS = 2


@dataclasses.dataclass(frozen=True)
class Distilling:
    """How new adapters learn from old ones."""

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


@dataclasses.dataclass(frozen=True)
class Move:
    """How adapters are moved.

    Attributes:
        to: the new BERT, as `--init_checkpoint` names one.
        output_dir: folder of the new library.
        texts: files of texts by the adapter's name; under "" of all others.
        dev: files of labelled rows, by the adapter's name.
        distilling: how the new adapters learn.
        training: likewise.
    """

    to: str
    output_dir: str
    texts: Mapping[str, str]
    dev: Mapping[str, str]
    distilling: Distilling
    training: Training


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
    """An adapter that is moved.

    Attributes:
        name: in both libraries.
        old: it, on the old BERT, without its calibration and novelty.
        method: that trains the new one.
        max_seq_length: of the new one, in tokens.
        rows: the texts.
        is_held_out: bool [rows].
        dev: labelled rows, or None.
    """

    name: str
    old: LoadedTask
    method: TuningMethod
    max_seq_length: int
    rows: Sequence[TextRow]
    is_held_out: np.ndarray
    dev: Optional[Rows]

    def chosen(self, is_chosen: np.ndarray) -> list[TextRow]:
        """Some of the rows, which bool [rows] chooses."""
        return list(itertools.compress(self.rows, is_chosen))


@dataclasses.dataclass(frozen=True)
class _Run:
    """Adapters that are trained together, by name, and the run's folder."""

    folder: str
    adapters: dict[str, _Adapter]

    def folder_of(self, name: str) -> str:
        """Gives the folder into which the run writes an adapter."""
        return os.path.join(self.folder, FOLDER, name)


def move(library: AdapterLibrary, old: FrozenBert, plan: Move) -> list[Moved]:
    """Moves the adapters of a library that can be moved.

    The others are logged, each with the reason. The same call goes on where a
    killed process was, with the same bits.

    Args:
        library: of the old BERT.
        old: that BERT.
        plan: what to do.

    Returns:
        The adapters of the new library, in order.
    """
    output_dir = plan.output_dir
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
    new = FrozenBert.open(plan.to)
    if new.base.fingerprint == old.base.fingerprint:
        raise UserError(
            f"--to is {plan.to}, the BERT of the library {library.path} "
            "itself; expected another one"
        )
    adapters = _choose(library, old, new, plan)
    target = AdapterLibrary(output_dir, create=True)
    files.prepare_folder(work)
    with folder_lock.hold(work):
        tables = MixedBert(old)
        answered = _old_outputs(old, tables, adapters, work)
        runs = _divide(adapters, new, work)
        for run in runs:
            _train(run, answered, plan)
        moved = _measure(runs, answered, tables, new)
        for run in runs:
            for name in run.adapters:
                _add(target, name, os.path.join(run.folder_of(name), ADAPTER))
        _write(plan, old, new, moved)
    return moved


def _choose(
    library: AdapterLibrary, old: FrozenBert, new: FrozenBert, plan: Move
) -> dict[str, _Adapter]:
    """Finds the adapters that can be moved, with their rows, by name."""
    names = library.names()
    for flag, named in (("--texts", plan.texts), ("--dev", plan.dev)):
        for name in named:
            if name and name not in names:
                raise UserError(
                    f"{flag} names the adapter {name!r}; {library.path} has: "
                    f"{', '.join(names)[:200] or 'none'}"
                )
    adapters = {}
    for name in names:
        config = adapter_artifact.read_config(library.folder(name))
        loaded = load_task(old, library.folder(name), None, library.path)
        method = registry.parse(config.get("trained_with") or config["method"])
        if isinstance(method, PerTask):
            # It is of several tasks, and the adapter is of one.
            method = registry.parse(config["method"])
        problem = _problem(config, method, loaded, new)
        if problem:
            logging.warning("%s is not moved: %s", name, problem)
            continue
        if loaded.task.calibration != Calibration():
            logging.warning(
                "the calibration of %s is left out: calibrate the new adapter "
                "on dev rows",
                name,
            )
        if loaded.task.novelty:
            logging.warning(
                "the novelty of %s is left out: it is told by what the old "
                "BERT computes",
                name,
            )
        task = dataclasses.replace(
            loaded.task, calibration=Calibration(), novelty=None
        )
        loaded = dataclasses.replace(loaded, task=task)
        path = plan.texts.get(name, plan.texts.get("", ""))
        if not path:
            raise UserError(
                f"no --texts are for the adapter {name}; pass --texts=FILE for "
                f"all adapters, or --texts={name}=FILE too"
            )
        rows = _read_texts(path, name, loaded)
        length = min(loaded.max_seq_length, new.config.max_tokens)
        dev = plan.dev.get(name)
        adapters[name] = _Adapter(
            name,
            loaded,
            method,
            length,
            rows,
            _hold_out(len(rows), plan),
            None if dev is None else _read_dev(dev, name, task),
        )
    if not adapters:
        raise UserError(
            f"the library {library.path} has no adapter that can be moved; "
            f"expected one for {', '.join(MOVABLE)}, on this BERT alone"
        )
    return adapters


def _hold_out(count: int, plan: Move) -> np.ndarray:
    """Chooses the rows that measure, bool [count]; both sides have some."""
    held_out = round(plan.distilling.held_out * count)
    held_out = min(max(held_out, LEAST_ROWS), count - LEAST_ROWS)
    order = np.random.default_rng(plan.training.seed).permutation(count)
    return np.isin(np.arange(count), order[:held_out])


def _problem(
    config: Mapping[str, Any],
    method: TuningMethod,
    loaded: LoadedTask,
    new: FrozenBert,
) -> str:
    """Why an adapter cannot be moved, or ""."""
    kind = kind_of(config["task"])
    if kind not in MOVABLE:
        return f"its kind is {kind}, expected {', '.join(MOVABLE)}"
    if len(loaded.numbers_of_texts) > 1:
        return (
            "its files do not tell whether its rows are pairs; import it "
            "again with --texts=one or --texts=two"
        )
    if config.get("parts"):
        return "it is made of other trained adapters, of the old BERT"
    if run_record.new_tokens(config, loaded.task.name):
        return "it has new words, of the old BERT's vocabulary"
    try:
        new.kind(method, loaded.task)
    except UserError as error:
        return f"the new BERT cannot take its method: {error}"
    return ""


def _read_texts(path: str, name: str, loaded: LoadedTask) -> list[TextRow]:
    """Reads a file's rows as an adapter does."""
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
    if len(rows) < 2 * LEAST_ROWS:
        raise UserError(
            f"--texts: {path} holds {len(rows)} rows for the adapter {name}, "
            f"expected at least {2 * LEAST_ROWS}"
        )
    return rows


def _read_dev(path: str, name: str, task: TextTask) -> Rows:
    """Reads labelled rows as an adapter's dev set."""
    check_file(f"--dev of {name}", path, READERS)
    named = dataclasses.replace(task, split_files=SplitFiles(dev=path))
    return named.read("", ["dev"])[1]["dev"]


def _compute(
    tables: MixedBert, tasks: Mapping[str, tuple[LoadedTask, Sequence[TextRow]]]
) -> dict[str, Outputs]:
    """Computes outputs of heads [rows, ...] by name, by the adapter's name.

    Batches mix the rows of all adapters that can be mixed.
    """
    groups = [Group([loaded], rows) for loaded, rows in tasks.values()]
    computed = dict(zip(tasks, compute(tables, groups, BATCH)))
    for name, outputs in computed.items():
        check_finite(outputs, name)
    return computed


def _old_outputs(
    old: FrozenBert,
    tables: MixedBert,
    adapters: Mapping[str, _Adapter],
    work: str,
) -> dict[str, Outputs]:
    """Computes the old adapters' outputs for all texts, or reads kept ones.

    Some rows of each adapter at a time are computed, and kept in a file.
    """
    folder = os.path.join(work, "old_outputs")
    files.prepare_folder(folder)
    most = max(len(one.rows) for one in adapters.values())
    total = sum(len(one.rows) for one in adapters.values())
    chunks: dict[str, list[Outputs]] = {name: [] for name in adapters}
    progress = Progress("old answers", total, "rows")
    for first in range(0, most, CHUNK):
        some = {
            name: (one.old, one.rows[first : first + CHUNK])
            for name, one in adapters.items()
            if first < len(one.rows)
        }
        about = [old.base.fingerprint] + [
            [name, loaded.sha256, loaded.max_seq_length, rows]
            for name, (loaded, rows) in some.items()
        ]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        path = os.path.join(folder, f"{key[:32]}.npz")
        kept = _read_outputs(path)
        if kept is None:
            kept = {
                f"{name}/{output}": values
                for name, outputs in _compute(tables, some).items()
                for output, values in outputs.items()
            }
            content = io.BytesIO()
            np.savez(content, **kept)
            files.write_bytes(path, content.getvalue())
        for name in some:
            scope = f"{name}/"
            chunks[name].append(
                {
                    full[len(scope) :]: values
                    for full, values in kept.items()
                    if full.startswith(scope)
                }
            )
        progress.update(sum(len(rows) for _, rows in some.values()))
    progress.close()
    return {
        name: {
            output: np.concatenate([chunk[output] for chunk in of_name])
            for output in of_name[0]
        }
        for name, of_name in chunks.items()
    }


def _read_outputs(path: str) -> Optional[Outputs]:
    """What an earlier process kept, or None: no file, or a damaged one."""
    if not files.exists(path):
        return None
    try:
        content = io.BytesIO(files.read_bytes(path, "old answers"))
        with np.load(content, allow_pickle=False) as kept:
            return dict(kept)
    # Flags and versions of archives that Python's reader lacks are errors of
    # its own.
    except (EOFError, RuntimeError, ValueError, zipfile.BadZipFile):
        logging.warning("%s is damaged: its answers are computed anew", path)
        return None


def _divide(
    adapters: Mapping[str, _Adapter], new: FrozenBert, work: str
) -> list[_Run]:
    """Puts adapters of one method, length and form of heads into one run.

    A method that several tasks cannot have at once trains each adapter alone.
    """
    alike: dict[Any, list[_Adapter]] = {}
    for one in adapters.values():
        key = one.method, one.max_seq_length, one.old.task.head
        alike.setdefault(key, []).append(one)
    runs = []
    for group in alike.values():
        tasks = {one.name: one.old.task for one in group}
        try:
            task_model.list_parameters(
                new.config, group[0].method, _task(tasks).build_head
            )
            shares = [group]
        except UserError:
            # The method fits each task, as `_problem` found.
            shares = [[one] for one in group]
        for share in shares:
            folder = os.path.join(work, "runs", share[0].name)
            runs.append(_Run(folder, {one.name: one for one in share}))
    return runs


def _task(tasks: Mapping[str, Task], **more: Any) -> Distillation:
    return Distillation(
        ",".join(tasks), tasks=tasks, sampling="proportional", **more
    )


def _train(run: _Run, answered: Mapping[str, Outputs], plan: Move) -> None:
    """Trains the new adapters of a run, or goes on with it."""
    texts, outputs = {}, {}
    for name, one in run.adapters.items():
        is_trained = ~one.is_held_out
        texts[name] = one.old.task.make_rows(one.chosen(is_trained))
        outputs[name] = {
            output: values[is_trained]
            for output, values in answered[name].items()
        }
    tasks = {name: one.old.task for name, one in run.adapters.items()}
    [(method, length)] = {
        (one.method, one.max_seq_length) for one in run.adapters.values()
    }
    logging.info("new adapters: %s, by %s", ", ".join(tasks), method)
    experiments.run(
        Experiment(
            task=_task(
                tasks,
                temperature=plan.distilling.temperature,
                texts=texts,
                outputs=outputs,
            ),
            method=method,
            named_method=None,
            named_arguments={},
            max_seq_length=length,
            do_train=True,
            output_dir=run.folder,
            init_checkpoint=plan.to,
            training=plan.training,
            # Models that follow one another share its process.
            engine="strategy",
        )
    )


def _measure(
    runs: Sequence[_Run],
    answered: Mapping[str, Outputs],
    old: MixedBert,
    new: FrozenBert,
) -> list[Moved]:
    """Compares old and new adapters; writes scores next to the new ones."""
    adapters = {n: one for run in runs for n, one in run.adapters.items()}
    folders = {n: run.folder_of(n) for run in runs for n in run.adapters}
    loaded = {
        name: load_task(new, os.path.join(folder, ADAPTER), None)
        for name, folder in folders.items()
    }
    tables = MixedBert(new)
    held_out = {n: one.chosen(one.is_held_out) for n, one in adapters.items()}
    new_outputs = _compute(
        tables, {n: (loaded[n], held_out[n]) for n in adapters}
    )
    dev = {n: one for n, one in adapters.items() if one.dev is not None}
    before = _scores(old, {n: (one.old, one.dev) for n, one in dev.items()})
    after = _scores(tables, {n: (loaded[n], one.dev) for n, one in dev.items()})
    moved = []
    for name, one in adapters.items():
        old_outputs = {k: v[one.is_held_out] for k, v in answered[name].items()}
        answers = [
            one.old.task.answer(rows, one.old.task.decode(rows, None, outputs))
            for rows in [one.old.task.make_rows(held_out[name])]
            for outputs in (old_outputs, new_outputs[name])
        ]
        path = os.path.join(folders[name], ADAPTER)
        config = adapter_artifact.read_config(path)
        scores: dict[str, float] = {}
        if name in dev:
            scores, data = after[name]
            step = training_state.step_of(config["checkpoint"])
            write_results(folders[name], scores, step, {"dev": data})
        moved.append(
            Moved(
                name,
                config["method"],
                len(one.rows) - len(held_out[name]),
                len(held_out[name]),
                *_agreement(*answers),
                before[name][0] if name in dev else {},
                scores,
            )
        )
    return sorted(moved, key=lambda one: one.name)


def _scores(
    tables: MixedBert, tasks: Mapping[str, tuple[LoadedTask, Rows]]
) -> dict[str, tuple[dict[str, float], str]]:
    """Scores of labelled rows, and their fingerprint, by the adapter's name."""
    texts = {}
    for name, (loaded, rows) in tasks.items():
        columns = [x for x in (rows.text_a, rows.text_b) if x is not None]
        texts[name] = loaded, list(zip(*columns))
    scored = {}
    for name, outputs in _compute(tables, texts).items():
        loaded, rows = tasks[name]
        features = loaded.task.featurize(
            rows, loaded.tokenizer, loaded.max_seq_length
        )
        predictions = loaded.task.decode(rows, features, outputs)
        scores = loaded.task.evaluate(rows, features, predictions)
        scored[name] = scores, features.fingerprint()
    return scored


def _agreement(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> tuple[str, float]:
    """Measures the agreement of answers to the same rows."""
    # A label, labels, or a value comes first.
    first, second = ([next(iter(x.values())) for x in of] for of in (old, new))
    if "value" in old[0]:
        return "pearson", metrics.pearson(np.array(first), np.array(second))
    equal = [a == b for a, b in zip(first, second)]
    return "equal", float(np.mean(equal))


def _add(target: AdapterLibrary, name: str, folder: str) -> None:
    """Adds an adapter, unless an earlier process has added it."""
    if name in target.names():
        there, new = (
            adapter_artifact.read_config(place)["sha256"]
            for place in (target.folder(name), folder)
        )
        if there == new:
            return
    target.add(folder, name)


def table(moved: Sequence[Moved]) -> list[list[str]]:
    """Rows of cells, a header first; the score is the task's main one."""
    rows = ["name method texts held_out measure agreement".split()]
    rows[0] += ["score", "old", "new"]
    for one in moved:
        about = [one.name, one.method, str(one.texts), str(one.held_out)]
        score = next(iter(one.old), "")
        values = [one.old[score], one.new[score]] if score else []
        rows.append(
            [*about, one.measure, f"{one.agreement:.4f}", score or "-"]
            + ([f"{value:.4f}" for value in values] or ["-", "-"])
        )
    return rows


def _write(
    plan: Move, old: FrozenBert, new: FrozenBert, moved: Sequence[Moved]
) -> None:
    write_table(os.path.join(plan.output_dir, TABLE_FILE), table(moved))
    files.write_json(
        os.path.join(plan.output_dir, RECORD_FILE),
        {
            "old_base": old.base.describe(),
            "new_base": new.base.describe(),
            **dataclasses.asdict(plan.distilling),
            "training": recorded(plan.training),
            "adapters": [dataclasses.asdict(one) for one in moved],
        },
    )
