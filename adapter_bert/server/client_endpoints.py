"""Endpoints that clients of other servers know, as aliases of this server's.

An alias makes this server's body of the client's, and the client's answer of
this server's. Sources: OpenAI's API reference, "Embeddings" and "Models";
text-embeddings-inference, its OpenAPI document, where `task` is an addition.
"""

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from adapter_bert.graph.exported import EMBED, Tasks, shown_names
from adapter_bert.server.request_core import Refused, check_count
from adapter_bert.server.shelf import ANSWER, Shelf
from adapter_bert.tasks.kinds import CLASSIFICATION, MULTI_LABEL, RERANK
from adapter_bert.tasks.retrieval import unit

MODELS = "/v1/models"
BASE64 = "base64"
FORMATS = "float", BASE64
Body = Mapping[str, Any]
SWITCH = True, False, None
# Members that have few values. A score has one form, and there is one prompt.
VALUES = {
    "normalize": SWITCH,
    "prompt_name": (None,),
    "raw_scores": (False, None),
    "return_text": SWITCH,
    "truncate": SWITCH,
    "truncation_direction": ("Right", None),
}


class Alias(NamedTuple):
    """An endpoint that stands for another one.

    Attributes:
        verb: of this server's endpoint.
        members: those that a body may have.
        read: gives this server's body of a client's, of at most so many rows.
        tell: gives the client's answer of its body, this server's answer, and
            what counts the tokens.
    """

    verb: str
    members: Collection[str]
    read: Callable[[Body, Shelf, int], dict[str, Any]]
    tell: Callable[[Body, Any, Callable[[], Optional[int]]], Any]

    def translate(
        self, body: Body, shelf: Shelf, max_rows: int
    ) -> dict[str, Any]:
        """Reads a body; refuses values that `VALUES` does not have."""
        for name, values in VALUES.items():
            value = body.get(name)
            # 0 equals False.
            is_one = isinstance(value, (bool, str, type(None)))
            if not is_one or value not in values:
                raise Refused(
                    400,
                    f'"{name}" is {json.dumps(value)[:80]}, expected '
                    f"{' or '.join(map(json.dumps, values))}",
                )
        return self.read(body, shelf, max_rows)


def _choose(body: Body, tasks: Tasks, fitting: Sequence[str]) -> str:
    chosen = body.get("task")
    if chosen is None and len(fitting) == 1:
        return fitting[0]
    if not isinstance(chosen, str) or chosen not in tasks:
        raise Refused(
            400,
            f'"task" is {json.dumps(chosen)[:80]}, expected a task that '
            f"answers here; there are: {shown_names(fitting) or 'none'}",
        )
    return chosen


def _texts(body: Body, name: str) -> list[Any]:
    texts = body.get(name)
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts:
        raise Refused(400, f'"{name}" is no text and no list of texts')
    if not all(isinstance(text, str) for text in texts):
        raise Refused(
            400,
            f'"{name}" holds what is no text; token ids are not read, since '
            "each model has other ones",
        )
    return texts


def _instances(
    body: Body, name: str, task: str, max_rows: int
) -> dict[str, Any]:
    texts = _texts(body, name)
    check_count(texts, max_rows)
    return {"instances": [{"task": task, "text": text} for text in texts]}


def _vectors(body: Body, vectors: Any, normalizes: bool) -> np.ndarray:
    """Cuts vectors to `dimensions`, float32 [N, D]."""
    whole = np.asarray(vectors, np.float32)
    width, size = whole.shape[1], body.get("dimensions")
    if size is not None and not (type(size) is int and 1 <= size <= width):
        raise Refused(
            400,
            f'"dimensions" is {str(size)[:80]!r}, expected a whole number from '
            f"1 to {width}, the size of a vector",
        )
    cut = whole[:, :size]
    return unit(cut).astype(np.float32) if normalizes else cut


def _read_embeddings(body: Body, shelf: Shelf, max_rows: int) -> dict[str, Any]:
    tasks = shelf.tasks
    model, form = body.get("model"), body.get("encoding_format")
    if not isinstance(model, str) or model not in tasks:
        raise Refused(
            404,
            f'"model" is {str(model)[:80]!r}, expected a task: '
            f"{shown_names(list(tasks)) or 'there is none'}",
        )
    if form not in (None, *FORMATS):
        raise Refused(
            400,
            f'"encoding_format" is {str(form)[:80]!r}, expected '
            f"{' or '.join(FORMATS)}",
        )
    return _instances(body, "input", model, max_rows)


def _tell_embeddings(
    body: Body, content: Any, count: Callable[[], Optional[int]]
) -> dict[str, Any]:
    vectors = _vectors(body, content["embeddings"], True)

    def encode(vector: np.ndarray) -> Any:
        if body.get("encoding_format") != BASE64:
            return vector.tolist()
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()

    tokens = count()
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": encode(vector)}
            for place, vector in enumerate(vectors)
        ],
        "model": body["model"],
        "usage": None if tokens is None else usage,
    }


def _read_embed(body: Body, shelf: Shelf, max_rows: int) -> dict[str, Any]:
    task = _choose(body, shelf.tasks, shelf.embedded())
    return _instances(body, "inputs", task, max_rows)


def _tell_embed(body: Body, content: Any, count: Any) -> list[list[float]]:
    normalizes = body.get("normalize") is not False
    return _vectors(body, content["embeddings"], normalizes).tolist()


def _read_rerank(body: Body, shelf: Shelf, max_rows: int) -> dict[str, Any]:
    named = {name: body.get(name) for name in ("query", "task")}
    return {**named, "documents": _texts(body, "texts")}


def _tell_rerank(body: Body, content: Any, count: Any) -> list[dict[str, Any]]:
    texts = _texts(body, "texts") if body.get("return_text") else None
    return [
        {
            "index": one["index"],
            **({"text": texts[one["index"]]} if texts else {}),
            "score": one["score"],
        }
        for one in content["results"]
    ]


def _is_batch(body: Body) -> bool:
    inputs = body.get("inputs")
    return isinstance(inputs, list) and isinstance((inputs or [0])[0], list)


def _read_predict(body: Body, shelf: Shelf, max_rows: int) -> dict[str, Any]:
    tasks = shelf.tasks
    labelling = CLASSIFICATION, MULTI_LABEL
    fitting = [n for n, task in tasks.items() if task["kind"] in labelling]
    task = _choose(body, tasks, fitting)
    if task not in fitting:
        raise Refused(400, f"the task {task} gives no scores of labels")
    rows = body["inputs"] if _is_batch(body) else [body.get("inputs")]
    check_count(rows, max_rows)
    instances = []
    for row in rows:
        texts = _texts({"inputs": row}, "inputs")
        if len(texts) > 2:
            raise Refused(
                400,
                '"inputs" has more than two texts; rows are lists in a list',
            )
        named = dict(zip(("text", "text_b"), texts))
        instances.append({"task": task, **named})
    return {"instances": instances}


def _tell_predict(body: Body, content: Any, count: Any) -> list[Any]:
    predictions = [
        [
            {"score": score, "label": label}
            for label, score in sorted(
                answer["scores"].items(), key=lambda pair: -pair[1]
            )
        ]
        for answer in content["answers"]
    ]
    return predictions if _is_batch(body) else predictions[0]


# Of every body of text-embeddings-inference. Texts are always cut.
COMMON = "task", "truncate", "truncation_direction"
ALIASES = {
    "/v1/embeddings": Alias(
        EMBED,
        ("model", "input", "encoding_format", "dimensions", "user"),
        _read_embeddings,
        _tell_embeddings,
    ),
    "/embed": Alias(
        EMBED,
        ("inputs", "normalize", "dimensions", "prompt_name", *COMMON),
        _read_embed,
        _tell_embed,
    ),
    "/rerank": Alias(
        RERANK,
        ("query", "texts", "raw_scores", "return_text", *COMMON),
        _read_rerank,
        _tell_rerank,
    ),
    "/predict": Alias(
        ANSWER,
        ("inputs", "raw_scores", *COMMON),
        _read_predict,
        _tell_predict,
    ),
}
# OpenAI's codes of errors, by HTTP's.
OPENAI_CODES = {
    401: "invalid_api_key",
    404: "model_not_found",
    429: "rate_limit_exceeded",
}


def error_content(path: str, code: int, message: str) -> dict[str, Any]:
    """Tells an error in the form that clients of a path know."""
    if path in ("/v1/embeddings", MODELS):
        kind = "server_error" if code >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": None}
        return {"error": {**error, "code": OPENAI_CODES.get(code)}}
    if path not in ALIASES:
        return {"error": message}
    kind = "backend" if code >= 500 else "validation"
    return {
        "error": message,
        "error_type": "overloaded" if code == 429 else kind,
    }


def describe_model(name: str) -> dict[str, Any]:
    """Describes a task as one of OpenAI's models, without a creation time."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "adapter-bert",
    }


def list_models(tasks: Tasks) -> dict[str, Any]:
    """Lists tasks in the form of OpenAI's models."""
    return {"object": "list", "data": list(map(describe_model, tasks))}
