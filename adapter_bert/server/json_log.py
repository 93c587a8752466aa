"""Logs lines of JSON."""

import json
import logging
import time

import absl.logging


class JsonFormatter(logging.Formatter):
    """A record as an object: `time` (UTC), `level`, `place`, `message`.

    A traceback is in `traceback`.
    """

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """A line without its end."""
        entry = {
            "time": self.formatTime(record),
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
