"""Adapter-tuned BERT: one frozen model, a small adapter for each task.

import adapter_bert as ab

bert = ab.load_bert("minilm")
run = ab.train(bert, rows, dev_share=0.2, output_dir="out/tickets")
ab.Predictor(bert, run).predict(["Where is my refund?"])[0].label

docs/python_api.md tells more. TensorFlow is loaded when a name is first used.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapter_bert.api import (
        Answer,
        Answers,
        Audit,
        Bert,
        Library,
        Predictor,
        Run,
        TokenVectors,
        audit,
        embed,
        evaluate,
        export,
        load_bert,
        rerank,
        select,
        train,
    )
    from adapter_bert.errors import UserError

__all__ = [
    "Answer",
    "Answers",
    "Audit",
    "Bert",
    "Library",
    "Predictor",
    "Run",
    "TokenVectors",
    "UserError",
    "audit",
    "embed",
    "evaluate",
    "export",
    "load_bert",
    "rerank",
    "select",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a name of the API from the module that defines it."""
    if name == "__version__":
        try:
            return importlib.metadata.version("adapter-bert-tf")
        except importlib.metadata.PackageNotFoundError:
            # A checkout may be used as it is.
            return "unknown"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "errors" if name == "UserError" else "api"
    return getattr(importlib.import_module(f"{__name__}.{place}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
