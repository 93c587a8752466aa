"""Answers of an exported model as a pipeline of Apache Beam.

No other module imports Beam, which has an environment of its own (`make beam`).
"""

import builtins
import contextlib
import dataclasses
import io
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Optional

import apache_beam as beam
import tensorflow as tf
from apache_beam.io import filebasedsink, textio
from apache_beam.io.filesystem import (
    BeamIOError,
    CompressionTypes,
    FileMetadata,
)
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    ModelHandler,
    PredictionResult,
    RunInference,
)
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineState

from adapter_bert.errors import UserError, first_line
from adapter_bert.graph import bulk_rows
from adapter_bert.graph.bulk_rows import BulkRow
from adapter_bert.graph.exported import ExportedModel, Row, Tasks, refusal

# Beam's default runner would first download a program.
RUNNER = "FnApiRunner"
DEFAULTS = (f"--runner={RUNNER}", "--default_sdk_harness_log_level=WARNING")
ENDING, REFUSED = ".jsonl", "-refused"
# Pattern of the numbers in Beam's file names.
NUMBER = "[0-9]" * 5
COUNTERS = "bulk"
ANSWERED_COUNT = Metrics.counter(COUNTERS, "answered")
REFUSED_COUNT = Metrics.counter(COUNTERS, "refused")
# Name of Beam's threads that look after one worker's process each.
WORKER_THREAD = "run_worker"
# A prediction's key for the reason of a refusal.
ERROR = "error"
# Class and text of a worker's exception, in the last line of its traceback.
RAISED = re.compile(r"^(?:RuntimeError: )*(?:\w+\.)*(\w+): (\S.*)$", re.M)
FILE_ERRORS = [
    name
    for name, kind in {**vars(builtins), "BeamIOError": BeamIOError}.items()
    if isinstance(kind, type) and issubclass(kind, OSError)
]
LOGGER_OF_RAISED = "apache_beam.runners.common"
# Beam's addition to the text.
STEP = re.compile(r" \[while running '[^']*'\]")


@dataclasses.dataclass(frozen=True)
class BeamJob:
    """A job's input and output, and the model that answers.

    `input` is a pattern of files, `output` the beginning of files' names.
    `names` are tasks that answer every row; empty if each row names its task.
    """

    input: str
    output: str
    model: str
    version: str
    tasks: Tasks
    names: Sequence[str]
    batch_size: int


class ExportedModelHandler(ModelHandler[Row, PredictionResult, ExportedModel]):
    """Makes an exported model usable in Beam's `RunInference`.

    A prediction is one of `ExportedModel.answers`, or `{"error": reason}`.
    """

    def __init__(self, folder: str, version: str = "", batch_size: int = 128):
        """Takes a folder that workers see too, and a version or the newest."""
        # Equal, so that Beam does not adapt them to the time of a batch.
        super().__init__(min_batch_size=batch_size, max_batch_size=batch_size)
        self._folder, self._version = folder, version

    def load_model(self) -> ExportedModel:
        """Loads the model, once in each worker process."""
        return ExportedModel(self._folder, self._version)

    def run_inference(
        self, batch: Sequence[Row], model: ExportedModel, inference_args=None
    ) -> Iterable[PredictionResult]:
        """Answers rows; raises tf.errors.OpError if the worker has failed."""
        return [
            PredictionResult(row, answer)
            for row, answer in zip(batch, _answers(model, batch))
        ]

    def get_num_bytes(self, batch: Sequence[Row]) -> int:
        return sum(
            len(text)
            for *texts, choices in batch
            for text in (*texts, *choices)
        )


def _answers(model: ExportedModel, rows: Sequence[Row]) -> list[dict[str, Any]]:
    try:
        return model.answers(rows)
    except tf.errors.InvalidArgumentError as error:
        if len(rows) == 1:
            return [{ERROR: refusal(error)}]
    return [answer for row in rows for answer in _answers(model, [row])]


class _LineSource(textio._TextSourceWithFilename):
    """Yields (file, line); refuses compressed files that are cut short."""

    # Beam itself reads such a file as far as it goes.

    @contextlib.contextmanager
    def open_file(self, file_name: str) -> Iterator[IO[bytes]]:
        plain = CompressionTypes.UNCOMPRESSED
        decompress = bulk_rows.COMPRESSED.get(bulk_rows.compression(file_name))
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(
                FileSystems.open(file_name, compression_type=plain)
            )
            yield opened.enter_context(decompress(file)) if decompress else file

    def read_records(
        self, file_name: str, range_tracker: Any
    ) -> Iterator[tuple[str, bytes]]:
        try:
            yield from super().read_records(file_name, range_tracker)
        except bulk_rows.UNREADABLE as error:
            raise UserError(
                f"cannot read --input {file_name}: {first_line(error)}"
            ) from error


class _ReadRows(beam.io.ReadFromTextWithFilename):
    _source_class = _LineSource


class _Lines(filebasedsink.FileBasedSink):
    def write_encoded_record(self, file_handle: IO[bytes], encoded: bytes):
        file_handle.write(encoded + b"\n")

    def pre_finalize(self, init_result: Any, writer_results: Any) -> None:
        """Deletes nothing.

        Beam would delete whatever matches `answers-*-of-00001.jsonl`, even the
        files of another job's `answers-2`.
        """


def _write(output: str, **options) -> beam.PTransform:
    coder = beam.coders.StrUtf8Coder()
    return beam.io.Write(_Lines(output, coder, ENDING, **options))


def _ask(element: tuple[str, bytes], tasks: Tasks, names: Sequence[str]):
    for question in bulk_rows.questions(*element, tasks, names):
        if question.reason:
            yield beam.pvalue.TaggedOutput(REFUSED, question)
        else:
            yield question._replace(row=None), question.row


def _tell(element: tuple[BulkRow, PredictionResult], tasks: Tasks):
    question, prediction = element
    outputs = prediction.inference
    if ERROR in outputs:
        refused = question.refused(outputs[ERROR])
        yield beam.pvalue.TaggedOutput(REFUSED, refused)
    else:
        ANSWERED_COUNT.inc()
        yield bulk_rows.answer_line(question, tasks[question.task], outputs)


def _tell_refusal(refused: BulkRow) -> str:
    REFUSED_COUNT.inc()
    return bulk_rows.refusal_line(refused)


def build(pipeline: beam.Pipeline, job: BeamJob) -> None:
    """Adds all of a job's steps to a pipeline."""
    handler = ExportedModelHandler(job.model, job.version, job.batch_size)
    ask = beam.FlatMap(_ask, job.tasks, job.names)
    tell = beam.FlatMap(_tell, job.tasks)
    rows = (
        pipeline
        | "Read" >> _ReadRows(job.input, coder=beam.coders.BytesCoder())
        # So that one file may keep many workers busy.
        | "Spread" >> beam.Reshuffle()
        | "Ask" >> ask.with_outputs(REFUSED, main="rows")
    )
    lines = (
        rows.rows
        | "Predict" >> RunInference(KeyedModelHandler(handler))
        | "Tell" >> tell.with_outputs(REFUSED, main="lines")
    )
    lines.lines | "Write" >> _write(job.output)
    (
        (rows[REFUSED], lines[REFUSED])
        | beam.Flatten()
        | "TellRefusals" >> beam.Map(_tell_refusal)
        | "WriteRefusals" >> _write(job.output + REFUSED, skip_if_empty=True)
    )


def run(job: BeamJob, options: PipelineOptions) -> tuple[int, int]:
    """Runs a job; returns the numbers of answers and refusals."""
    threading.excepthook = _end_with_worker
    # The logger would show, with tracebacks, errors that are raised here too.
    logging.getLogger(LOGGER_OF_RAISED).setLevel(logging.CRITICAL)
    pipeline = beam.Pipeline(options=options)
    try:
        build(pipeline, job)
        result = pipeline.run()
        state = result.wait_until_finish()
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(reason) from error
    if state != PipelineState.DONE:
        raise UserError(
            f"the runner ended the job as {state}; run the same command again"
        )
    filtered = MetricsFilter().with_namespace(COUNTERS)
    counts = {
        counter.key.metric.name: counter.result
        for counter in result.metrics().query(filtered)["counters"]
    }
    return counts.get("answered", 0), counts.get("refused", 0)


def _reason(error: Exception) -> Optional[str]:
    # Of Beam's text, if files are to blame.
    text = "".join(traceback.format_exception_only(type(error), error))
    raised = RAISED.findall(text)
    if not raised:
        return None
    name, reason = raised[-1]
    reason = STEP.sub("", reason)
    if name == UserError.__name__:
        return reason
    if name in FILE_ERRORS:
        return f"cannot read --input or write --output: {reason}"
    return None


def _end_with_worker(caught: threading.ExceptHookArgs) -> None:
    """Ends this process after a worker's early end.

    Beam's local runner may wait for a dead worker for ever; the thread that
    looks after the worker raises. Other workers end by themselves.
    """
    if caught.thread is None or caught.thread.name != WORKER_THREAD:
        threading.__excepthook__(caught)
        return
    message = (
        f"a worker has ended before its work ({caught.exc_value}), as when "
        "there is too little memory; run the same command again"
    )
    # Without cleaning up, which might wait for the worker.
    sys.stderr.write(f"error: {message}\n")
    sys.stderr.flush()
    os._exit(1)


def options_of(flags: Sequence[str]) -> PipelineOptions:
    """Makes Beam's options of flags, as `--direct_num_workers=2`."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            # The last of two values counts.
            options = PipelineOptions([*DEFAULTS, *flags])
            named = options.get_all_options(retain_unknown_options=True)
    except SystemExit as error:
        # The last line, behind the usage.
        raise UserError(stderr.getvalue().split("error: ")[-1]) from error
    # Another runner may have options of its own.
    if options.view_as(StandardOptions).runner == RUNNER:
        beam_options = PipelineOptions([]).get_all_options()
        for flag in sorted(set(named) - set(beam_options)):
            raise UserError(f"unexpected: --{flag}; it is no option of Beam's")
    return options


def written(output: str) -> str:
    """Gives the pattern of a job's files of answers."""
    return f"{output}-{NUMBER}-of-{NUMBER}{ENDING}"


def matching(pattern: str) -> list[FileMetadata]:
    """Lists matching files, with sizes in bytes."""
    try:
        (matched,) = FileSystems.match([pattern])
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot look for {pattern}: {first_line(error)}"
        ) from error
    return matched.metadata_list
