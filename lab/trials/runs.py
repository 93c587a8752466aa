"""Kinds of runs, and the comparison of their files."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from lab import report
from lab.trials import starts, tiny_files

# Folders within a trial's: what a program writes, what it reads there.
OUT, SOURCE = "out", "source"
# Folders of the material next to the data: a shelf of two adapters, and a run.
SHELF, TRAINED = "shelf", "trained"
ENGINES = ("estimator", "strategy")
# Files of a process and not of the run, or left by a process that was killed.
PASSING = re.compile(
    r"(.*/)?(events\.out\.tfevents.*|cost\.json|[^/]*\.?lock|"
    r"[^/]*\.tmp-[^/]*(/.*)?|[^/]*_temp/.*|write-test-[^/]*|eval/.*|"
    r"\.unfinished-.*)"
)
CHECKPOINT = re.compile(r"(.*/)?model\.ckpt-(\d+)\.(index|data-.*)")
# When an adapter has come into a library, what started a run; their hashes.
PASSING_KEYS = {
    "library_entry.json": ("added", "content_sha256"),
    "places.json": ("command", "content_sha256"),
}
FIRST_PHASE = "phase_1/"

Contents = dict[str, str]


@dataclasses.dataclass(frozen=True)
class ProgramRun:
    """A kind of run.

    Attributes:
        name: for people.
        program: the subcommand of adapter-bert.
        words: its arguments, with `{data}` for the material's folder and
            `{place}` for a trial's.
        copied: folders of the material that are copied into a trial's folder.
        trains: whether it goes on where it was killed, and a finished one
            may be run again.
        check: arguments of the program that look at what it has written.
        optional: files of the trial's folder that it may do without, with
            another result; they are not deleted.
    """

    name: str
    program: str
    words: tuple[str, ...]
    copied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trains: bool = True
    check: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def command(self, data: pathlib.Path, place: pathlib.Path) -> list[str]:
        """Returns the command line of a run in a folder."""
        words = (word.format(data=data, place=place) for word in self.words)
        return [self.program, *words]

    def begin(self, data: pathlib.Path, place: pathlib.Path) -> None:
        """Makes the folder of a trial as it is before the run."""
        place.mkdir(parents=True)
        (place / OUT).mkdir()
        for name, of in self.copied.items():
            shutil.copytree(data / of, place / name, dirs_exist_ok=True)

    def result(self, place: pathlib.Path) -> Contents:
        """Gets the result: a digest of each file that must be the same."""
        return result(place / OUT)


def result(out: pathlib.Path) -> Contents:
    """A digest of each file that does not tell of a process, by path.

    Of a training's checkpoints the newest counts. Of an exported model the
    number of its version does not.
    """
    paths = _files(out)
    newest: dict[str, int] = {}
    for name in paths:
        match = CHECKPOINT.fullmatch(name)
        if match and match[3] == "index":
            folder = match[1] or ""
            newest[folder] = max(newest.get(folder, 0), int(match[2]))
    contents = {}
    for name, path in paths.items():
        match = CHECKPOINT.fullmatch(name)
        is_old = match and int(match[2]) != newest.get(match[1] or "")
        if not is_old and not PASSING.fullmatch(name):
            plain = re.sub(r"^\d+/", "version/", name)
            digest = _digest(path)
            # Two exported versions are the same.
            if contents.setdefault(plain, digest) != digest:
                contents[plain] = "several"
    return contents


def _digest(path: pathlib.Path) -> str:
    content = path.read_bytes()
    if path.name == "checkpoint":
        # The newest; how many older ones there are is no matter.
        content = content.split(b"\n")[0]
    elif path.suffix == ".json":
        try:
            value = json.loads(content)
        except ValueError:
            pass
        else:
            for name in PASSING_KEYS.get(path.name, ()):
                if isinstance(value, dict):
                    value.pop(name, None)
            content = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def digests(place: pathlib.Path) -> Contents:
    """A digest of each file of a folder, as it is."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in _files(place).items()
    }


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differences(
    expected: Contents, actual: Contents, ignored: str = ""
) -> list[str]:
    """Names the files that differ, but those that begin with `ignored`."""
    return sorted(
        name
        for name in {*expected, *actual}
        if expected.get(name) != actual.get(name)
        and not (ignored and name.startswith(ignored))
    )


def training(name: str, program: str, engine: str, **flags: Any) -> ProgramRun:
    """A kind of training of seconds, with flags of its own.

    Args:
        name: for people.
        program: the subcommand of adapter-bert.
        engine: of `ENGINES`.
        flags: others than most trainings have.
    """
    values = {
        "init_checkpoint": "{data}/" + tiny_files.BERT,
        "output_dir": "{place}/" + OUT,
        "engine": engine,
        "do_train": True,
        "do_eval": True,
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 3e-3,
        "num_train_epochs": 4,
        "save_checkpoints_steps": 4,
        "tuning_method": "houlsby(size=4)",
        # The graph is built in half of the time.
        "cpu_lanes": 1,
        **flags,
    }
    words = tuple(f"--{flag}={value}" for flag, value in values.items())
    return ProgramRun(f"{name}, {engine}", program, words)


def table(name: str) -> dict[str, Any]:
    """Flags of a classification of the material's tables."""
    return {"task_name": "custom", "data_dir": "{data}/" + name}


def _trainings(engine: str) -> list[ProgramRun]:
    classify = functools.partial(
        training, program="run_classifier", engine=engine
    )
    of_table = table(tiny_files.TABLE)
    return [
        classify(
            "classification",
            **of_table,
            do_predict=True,
            eval_steps=5,
            keep_best="loss",
        ),
        classify("regression", **table(tiny_files.SCORES), regression=True),
        classify("lt_sft", **of_table, tuning_method="lt_sft(0.1)"),
        classify(
            "fusion",
            **of_table,
            tuning_method="fusion(one, two)",
            library="{data}/" + SHELF,
        ),
        classify(
            "several tasks",
            task_name="custom:one,custom:two",
            data_dir="{data}/" + tiny_files.SEVERAL,
            do_predict=True,
            num_train_epochs=2,
            keep_best="mean",
            eval_steps=5,
        ),
        training(
            "questions",
            "run_squad",
            engine,
            train_file="{data}/" + tiny_files.QUESTIONS,
            predict_file="{data}/" + tiny_files.QUESTIONS,
            do_predict=True,
            max_seq_length=20,
            max_query_length=8,
            doc_stride=4,
            num_train_epochs=10,
        ),
        training(
            "tagging",
            "run_tagger",
            engine,
            data_dir="{data}/" + tiny_files.TAGS,
            do_predict=True,
        ),
        training(
            "masked language modelling",
            "run_mlm",
            engine,
            train_file="{data}/" + tiny_files.LINES + "/train.txt",
            eval_file="{data}/" + tiny_files.LINES + "/eval.txt",
        ),
    ]


def _others() -> list[ProgramRun]:
    source = "{place}/" + SOURCE
    return [
        ProgramRun(
            "library",
            "library",
            ("add", "{place}/" + OUT, source, "--name=three"),
            {OUT: SHELF, SOURCE: TRAINED},
            trains=False,
            check=("verify", "{place}/" + OUT),
            # Without them it is an adapter without scores.
            optional=(f"{SOURCE}/run.json", f"{SOURCE}/eval_results.json"),
        ),
        ProgramRun(
            "export",
            "export",
            (
                "--init_checkpoint={data}/" + tiny_files.BERT,
                f"--adapter=it={source}/adapter",
                "--output_dir={place}/" + OUT,
            ),
            {SOURCE: TRAINED},
            trains=False,
        ),
    ]


# A seed means the same kind with every TensorFlow.
RUNS = (*(run for e in ENGINES for run in _trainings(e)), *_others())


def of_seed(seed: int) -> ProgramRun:
    """Returns the kind of run of a trial."""
    return RUNS[seed % len(RUNS)]


def here() -> list[ProgramRun]:
    """Returns the kinds that run with this TensorFlow."""
    return [
        run
        for run in RUNS
        if report.has_estimator() or not run.name.endswith(f", {ENGINES[0]}")
    ]


def make_adapters(data: pathlib.Path) -> None:
    """Adds to the material what other runs read: a trained run, a library.

    Raises:
        RuntimeError: a program has failed.
    """
    (data / SHELF).mkdir()
    methods = {"one": "pfeiffer(size=4)", "two": "pfeiffer(size=2)"}
    for name, method in {**methods, "": "houlsby(size=4)"}.items():
        folder = data / (f"{TRAINED}-{name}" if name else TRAINED)
        folder.mkdir()
        run = training(
            name,
            "run_classifier",
            ENGINES[1],
            **table(tiny_files.TABLE),
            tuning_method=method,
            output_dir=str(folder),
            num_train_epochs=2,
        )
        commands = [run.command(data, data)]
        if name:
            words = [str(data / SHELF), str(folder), f"--name={name}"]
            commands.append(["library", "add", *words])
        for command in commands:
            end = starts.start(command, str(folder))
            if end.code:
                raise RuntimeError(f"{command}: {end}: {end.stderr}")
