"""TensorFlow Serving's gRPC for served models, and gRPC's health.

Sources: TensorFlow Serving's `prediction_service.proto`, `model_service.proto`
and `get_model_metadata.proto`; "GRPC Health Checking Protocol". The packages
`grpcio` and `tensorflow-serving-api` are needed here alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import (
    Any,
    Callable,
    NamedTuple,
    Optional,
    Union,
)

import grpc
from absl import logging
from google.protobuf import json_format, wrappers_pb2
from google.protobuf.message import DecodeError, Message
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    predict_pb2,
)

from adapter_bert.errors import UserError
from adapter_bert.serving.exported import EMBED, EMBEDDING, SIGNATURE
from adapter_bert.serving.http_guard import Tokens
from adapter_bert.serving.request_core import (
    ANSWER,
    Counted,
    Refused,
    RequestCore,
)
from adapter_bert.serving.served import AskedRow, ServedModel
from adapter_bert.serving.served_models import NotServed
from adapter_bert.tasks.custom import MOST_CHOICES

SERVICES = (
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
)
HEALTH = "grpc.health.v1.Health"
SERVING, NOT_SERVING = 1, 2
# gRPC's codes for HTTP's.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Members of `TensorProto` for values of a type, and what fills a list up.
VALUES: Mapping[str, tuple[str, Any]] = {
    "DT_STRING": ("string_val", ""),
    "DT_FLOAT": ("float_val", 0.0),
    "DT_INT32": ("int_val", 0),
}
# Requests of a connection that are answered at a time; others wait.
MOST_OF_CONNECTION = 1000
# Seconds in which a request's message must come.
MESSAGE_S = 10.0
# A row's inputs.
INPUTS = ("text", "text_b", "task", "choices")


class Address(NamedTuple):
    """An address to listen at; 0 is any free port."""

    host: str
    port: int


class GrpcServer:
    """Answers over gRPC while `live` lasts.

    Attributes:
        port: where it listens, from the start of `live` on.
    """

    def __init__(
        self,
        core: RequestCore,
        address: Address,
        seconds: float,
        tokens: Optional[Tokens] = None,
        certificate: Optional[tuple[bytes, bytes]] = None,
    ):
        """Takes what answers, and what clients may do.

        Args:
            core: answers.
            address: of this server.
            seconds: that requests have to end.
            tokens: those of which each request needs one; None for none.
            certificate: a key and its certificate (PEM), for TLS.
        """
        self._core, self._address, self._seconds = core, address, seconds
        self._tokens, self._certificate = tokens, certificate
        self.port = 0
        self._reading: Any = None

    @contextlib.asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        """Answers requests; raises UserError if it cannot listen."""
        limits = self._core.limits
        # Messages that come, each of which may have the greatest size.
        self._reading = asyncio.Semaphore(
            max(1, limits.max_held_bytes // limits.max_body_bytes)
        )
        server = grpc.aio.server(
            options=[
                # Another server at the same port is an error.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limits.max_body_bytes),
                # A message that is small but unpacks to gigabytes is refused:
                # the bit of "not compressed" alone is set.
                ("grpc.compression_enabled_algorithms_bitset", 1),
                ("grpc.max_connection_idle_ms", int(2000 * limits.timeout)),
                ("grpc.max_concurrent_streams", MOST_OF_CONNECTION),
            ],
        )
        for service, methods in self._services().items():
            handlers = {
                name: grpc.stream_unary_rpc_method_handler(handler)
                for name, handler in methods.items()
            }
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(service, handlers)]
            )
        host, port = self._address
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate:
                found = grpc.ssl_server_credentials([self._certificate])
                self.port = server.add_secure_port(where, found)
            else:
                self.port = server.add_insecure_port(where)
        except RuntimeError as error:
            raise UserError(
                f"cannot listen at {host}, port {port}, for gRPC; choose "
                "another --host or --grpc_port"
            ) from error
        await server.start()
        logging.info("gRPC at %s, port %d", host, self.port)
        stopping = asyncio.create_task(self._stop_at_end(server))
        try:
            yield
        finally:
            self._core.is_ending = self._core.is_closed = True
            await stopping

    async def _stop_at_end(self, server: grpc.aio.Server) -> None:
        """Takes no more requests once the end begins, and answers the rest.

        HTTP's requests may take as long, and are answered meanwhile.
        """
        while not self._core.is_closed:
            await asyncio.sleep(0.05)
        await server.stop(self._seconds)

    def _services(self) -> dict[str, dict[str, Any]]:
        """Handlers of methods, by service and name."""
        prediction, model = SERVICES
        return {
            prediction: {
                "Predict": self._method(self._predict),
                "GetModelMetadata": self._method(self._tell_metadata),
            },
            model: {"GetModelStatus": self._method(self._tell_status)},
            HEALTH: {"Check": self._method(self._tell_health, is_open=True)},
        }

    def _method(
        self,
        answer: Callable[[bytes], Awaitable[Message]],
        is_open: bool = False,
    ) -> Any:
        """A handler of a method that takes one message.

        A stream of messages looks like one message to the client, and lets
        slow clients be cut off.
        """

        async def handle(messages: Any, context: Any) -> bytes:
            try:
                if self._tokens and not is_open:
                    self._check_token(context)
                # An open method takes no place of those with a token.
                places = contextlib.nullcontext() if is_open else self._reading
                return await self._answer(messages, answer, places)
            except Refused as refused:
                code, problem = CODES[refused.status_code], refused.detail
            except Exception:  # noqa: BLE001 - a defect, for the log.
                logging.exception("a defect")
                code, problem = (
                    grpc.StatusCode.INTERNAL,
                    "the server has failed",
                )
            await context.abort(code, problem)

        return handle

    async def _answer(
        self,
        messages: Any,
        answer: Callable[[bytes], Awaitable[Message]],
        places: contextlib.AbstractAsyncContextManager[Any],
    ) -> bytes:
        """The answer to the first message; raises `Refused`.

        The message waits for one of the places, and then must come soon.
        """
        timeout = self._core.limits.timeout
        try:
            content = await asyncio.wait_for(
                self._read(messages, places), timeout
            )
        except asyncio.TimeoutError as error:
            raise Refused(504, "the request did not come") from error
        try:
            self._core.hold(len(content))
            found = await answer(content)
        finally:
            self._core.release(len(content))
        return found.SerializeToString()

    async def _read(
        self, messages: Any, places: contextlib.AbstractAsyncContextManager[Any]
    ) -> bytes:
        """A request's only message; raises `Refused` without one."""

        async def first() -> bytes:
            async for content in messages:
                return content
            raise Refused(400, "the request has no message")

        async with places:
            return await asyncio.wait_for(first(), MESSAGE_S)

    def _check_token(self, context: Any) -> None:
        """Raises `Refused` without a token of a client."""
        given = dict(context.invocation_metadata() or ())
        token = given.get("authorization", "")
        refusal = self._tokens.refusal(token if isinstance(token, str) else "")
        if refusal:
            self._core.metrics.count_refused(refusal.code)
            raise Refused(refusal.code, refusal.message)

    def _find(self, spec: model_pb2.ModelSpec) -> ServedModel:
        return self._core.find(*_named(spec))

    async def _predict(self, content: bytes) -> Message:
        """`PredictResponse` of a `PredictRequest`."""
        request = read_message(predict_pb2.PredictRequest, content)
        with self._core.counted() as counted:
            model = self._find(request.model_spec)
            counted.name = request.model_spec.name
            return await self._core.in_time(
                self._respond(request, model, counted)
            )

    async def _respond(
        self,
        request: predict_pb2.PredictRequest,
        model: ServedModel,
        counted: Counted,
    ) -> Message:
        signature = request.model_spec.signature_name or SIGNATURE
        if signature not in model.signatures:
            known = ", ".join(model.signatures)
            raise Refused(
                400, f"unknown signature {signature[:80]!r}; there is {known}"
            )
        described = model.signatures[signature].get("outputs", {})
        asked_for = list(request.output_filter) or list(described)
        for name in asked_for:
            if name not in described:
                raise Refused(400, f"unknown output {name[:80]!r}")
        limits = self._core.limits
        rows = read_rows(request, limits.max_rows)
        for_vectors = signature == EMBED
        # One value of a message may stand for those of a thousand rows.
        size = sum(sum(row.sizes().values()) for row in rows)
        if size > limits.max_body_bytes:
            raise Refused(
                413,
                f"the rows have {size} bytes, of at most "
                f"{limits.max_body_bytes}",
            )
        more = max(0, size - request.ByteSize())
        try:
            self._core.hold(more)
            kind = EMBED if for_vectors else ANSWER
            asked = self._core.accept(model, rows, kind)
            counted.asked = asked
            results = await self._core.ask(asked)
        finally:
            self._core.release(more)
        if for_vectors:
            outputs = [{EMBEDDING: vector} for vector in results]
        else:
            questions = [one.question for one in asked]
            outputs = model.outputs(questions, results)
        response = predict_pb2.PredictResponse()
        _fill(response.model_spec, request.model_spec.name, model.version)
        response.model_spec.signature_name = signature
        for name in asked_for:
            values = [row[name] for row in outputs]
            tensor = as_tensor(values, described[name])
            response.outputs[name].CopyFrom(tensor)
        return response

    async def _tell_metadata(self, content: bytes) -> Message:
        """`GetModelMetadataResponse` of a `GetModelMetadataRequest`."""
        kinds = get_model_metadata_pb2
        request = read_message(kinds.GetModelMetadataRequest, content)
        model = self._find(request.model_spec)
        if set(request.metadata_field) != {"signature_def"}:
            raise Refused(400, "expected the metadata_field signature_def")
        signatures = json_format.ParseDict(
            {"signature_def": model.signatures}, kinds.SignatureDefMap()
        )
        response = kinds.GetModelMetadataResponse()
        _fill(response.model_spec, request.model_spec.name, model.version)
        response.metadata["signature_def"].Pack(signatures)
        return response

    async def _tell_status(self, content: bytes) -> Message:
        """`GetModelStatusResponse` of a `GetModelStatusRequest`."""
        kinds = get_model_status_pb2
        request = read_message(kinds.GetModelStatusRequest, content)
        try:
            states = self._core.models.states(*_named(request.model_spec))
        except NotServed as error:
            raise Refused(404, str(error)) from error
        response = kinds.GetModelStatusResponse()
        for one in states:
            found = response.model_version_status.add(version=int(one.version))
            found.state = kinds.ModelVersionStatus.State.Value(one.state)
            if one.error:
                found.status.error_code = grpc.StatusCode.UNKNOWN.value[0]
                found.status.error_message = one.error
        return response

    async def _tell_health(self, content: bytes) -> Message:
        """`HealthCheckResponse` of a `HealthCheckRequest`.

        Their only members have the types and numbers of those of protobuf's
        wrappers, which every version of protobuf has.
        """
        service = read_message(wrappers_pb2.StringValue, content).value
        if service not in ("", HEALTH, *SERVICES):
            raise Refused(404, f"no service {service[:80]!r}")
        state = NOT_SERVING if self._core.unready() else SERVING
        return wrappers_pb2.Int32Value(value=state)


def _named(spec: model_pb2.ModelSpec) -> tuple[str, str, str]:
    """Name, version and label of a model; "" where there is none."""
    version = str(spec.version.value) if spec.HasField("version") else ""
    return spec.name, version, spec.version_label


def _fill(spec: model_pb2.ModelSpec, name: str, version: str) -> None:
    spec.name, spec.version.value = name, int(version)


def read_message(kind: Any, content: bytes) -> Any:
    """A message of a class; raises `Refused` for other bytes."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise Refused(400, "the message is of another type") from error


def read_rows(
    request: predict_pb2.PredictRequest, max_rows: int
) -> list[AskedRow]:
    """The rows of a request.

    Args:
        request: its inputs are string [N], and `choices` string [N, C];
            `text_b` and `choices` may be missing.
        max_rows: limit for a request.

    Raises:
        Refused: an input is missing, unknown, or of another type or shape.
    """
    unknown = sorted(set(request.inputs) - set(INPUTS))
    if unknown:
        raise Refused(
            400,
            f"unknown input {unknown[0][:80]!r}; expected {', '.join(INPUTS)}",
        )
    for name in ("text", "task"):
        if name not in request.inputs:
            raise Refused(400, f"the input {name} is missing")
    columns = {
        name: _texts(name, tensor, max_rows)
        for name, tensor in request.inputs.items()
    }
    count = len(columns["text"])
    columns.setdefault("text_b", [b""] * count)
    if {len(values) for values in columns.values()} != {count}:
        raise Refused(400, "the inputs are not equally long")
    return [
        AskedRow(**dict(zip(columns, row))) for row in zip(*columns.values())
    ]


def _texts(
    name: str, tensor: tensor_pb2.TensorProto, max_rows: int
) -> Sequence[Union[bytes, tuple[bytes, ...]]]:
    """The values of an input, of `choices` those of each row, or `Refused`."""
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    axes = "NC" if name == "choices" else "N"
    if tensor.dtype != types_pb2.DT_STRING or len(sizes) != len(axes):
        raise Refused(
            400, f"the input {name} is not string [{', '.join(axes)}]"
        )
    count, *widths = sizes
    if not 0 <= count <= max_rows:
        raise Refused(400, f"{count} rows, of at most {max_rows}")
    width = widths[0] if widths else 1
    if not 0 <= width <= MOST_CHOICES:
        raise Refused(400, f"{width} choices, of at most {MOST_CHOICES}")
    values = list(tensor.string_val)
    # One value may stand for all, as in every `TensorProto`.
    if len(values) == 1:
        values *= count * width
    if len(values) != count * width:
        raise Refused(
            400,
            f"the input {name} has {len(values)} values, not {count * width}",
        )
    if not widths:
        return values
    return [
        tuple(values[row * width : (row + 1) * width]) for row in range(count)
    ]


def as_tensor(
    values: Sequence[Any], described: Mapping[str, Any]
) -> tensor_pb2.TensorProto:
    """Rows of an output in the members that clients read.

    Args:
        values: of N rows, each a value or a list.
        described: the output as JSON of a `TensorInfo`.

    Returns:
        A tensor [N] or [N, M], where M is the length of the longest list.
    """
    dtype = described["dtype"]
    member, filling = VALUES[dtype]
    shape = [len(values)]
    if len(described["tensor_shape"]["dim"]) == 2:
        most = max(map(len, values), default=0)
        shape.append(most)
        values = [
            one
            for row in values
            for one in (*row, *[filling] * (most - len(row)))
        ]
    if member == "string_val":
        values = [one.encode() for one in values]
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DataType.Value(dtype))
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    getattr(tensor, member).extend(values)
    return tensor
