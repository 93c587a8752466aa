"""Logs lines of JSON."""

import json
import logging
import time

import absl.logging


class JsonFormatter(logging.Formatter):
    """A record as an object: `time` (UTC), `level`, `place`, `message`.

    A traceback is in `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """A line without its end."""
        seconds = time.strftime(
            "%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)
        )
        entry = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "place": f"{record.filename}:{record.lineno}",
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def use() -> None:
    """Makes lines of JSON of all that Python logs and warns of from now on.

    TensorFlow writes some lines past Python's loggers.
    """
    logging.captureWarnings(True)
    handler = absl.logging.get_absl_handler()
    absl.logging.use_absl_handler()
    handler.setFormatter(JsonFormatter())
