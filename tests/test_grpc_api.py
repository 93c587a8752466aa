"""TensorFlow Serving's gRPC, asked by its public client's stubs."""

import asyncio
import contextlib
import dataclasses
import functools
import shutil
import socket
import subprocess
import threading
import time

import pytest
import tensorflow as tf
from google.protobuf import json_format
from sweep_stand_in import wait_for
from test_http_api import COLUMNS, LIMITS, Echo, Numbered, Server, Versions

from adapter_bert.errors import UserError
from adapter_bert.serving.exported import ExportedModel
from adapter_bert.serving.http_guard import Tokens
from adapter_bert.serving.model_versions import VersionState

grpc = pytest.importorskip("grpc")
grpc_api = pytest.importorskip("adapter_bert.serving.grpc_api")
from tensorflow_serving.apis import (  # noqa: E402
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

pytestmark = pytest.mark.newer_stack

TOKEN = "a-token-of-letters"
SECONDS = 30


class Both(Server):
    """A server of both protocols, and its gRPC's client."""

    def __init__(
        self, *arguments, credentials=None, certificate=None, **options
    ):
        make = functools.partial(
            grpc_api.GrpcServer,
            address=grpc_api.Address("127.0.0.1", 0),
            seconds=SECONDS,
            tokens=options.get("tokens"),
            certificate=certificate,
        )
        super().__init__(*arguments, beside=make, **options)
        address = f"127.0.0.1:{self.beside.port}"
        if credentials:
            self.channel = grpc.secure_channel(address, credentials)
        else:
            self.channel = grpc.insecure_channel(address)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(
            self.channel
        )
        self.status = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def close(self):
        self.channel.close()
        super().close()

    def predict(self, request, **options):
        """The response, or gRPC's code and message of a refusal."""
        return answered(self.prediction.Predict, request, **options)

    def check(self, content=b""):
        """The bytes of health's answer."""
        return answered(self.channel.unary_unary(HEALTH), content)


# Source: "GRPC Health Checking Protocol". Without functions that make bytes of
# messages, bytes are sent as they are.
HEALTH = "/grpc.health.v1.Health/Check"


def answered(method, request, **options):
    try:
        return method(request, timeout=60, **options)
    except grpc.RpcError as error:
        return error.code().name, error.details()


def request_of(columns, name="tiny", **spec):
    """A `PredictRequest` as TensorFlow Serving's clients make it."""
    made = predict_pb2.PredictRequest()
    made.model_spec.name = name
    version = spec.pop("version", None)
    if version is not None:
        made.model_spec.version.value = version
    for member, value in spec.items():
        setattr(made.model_spec, member, value)
    for input_name, values in columns.items():
        shape = None if isinstance(values, str) else [len(values)]
        made.inputs[input_name].CopyFrom(
            tf.make_tensor_proto(values, tf.string, shape)
        )
    return made


def of_tasks(*tasks, text="x", **more):
    texts = [text] * len(tasks)
    return request_of({"task": tasks, "text": texts}, **more)


class Texts(Echo):
    """As the echo, with a signature of its outputs."""

    def __init__(self):
        super().__init__()
        self.signature = {
            "outputs": {
                "n": described("DT_INT32", 1),
                "echo": described("DT_STRING", 1),
            }
        }


def described(dtype, axes):
    dims = [{"size": "-1"}] * axes
    return {"dtype": dtype, "tensor_shape": {"dim": dims}}


@pytest.fixture(scope="module")
def server():
    made = Both(model=Texts())
    yield made
    made.close()


@pytest.fixture
def slow():
    limits = dataclasses.replace(LIMITS, timeout=60.0)
    made = Both(limits, Texts())
    made.model.may_go.clear()
    yield made
    made.model.may_go.set()
    made.close()


@pytest.fixture(scope="module")
def exported(tiny_exported):
    limits = dataclasses.replace(LIMITS, timeout=60.0)
    made = Both(limits, ExportedModel(str(tiny_exported)))
    yield made
    made.close()


def test_the_outputs_are_the_graphs(exported, tiny_exported):
    """Names, types, shapes and values, and those of REST."""
    response = exported.predict(request_of(COLUMNS))
    spec = response.model_spec
    assert (spec.name, spec.version.value) == ("tiny", 1)
    assert spec.signature_name == "serving_default"
    loaded = tf.saved_model.load(str(tiny_exported / "1"))
    expected = loaded.signatures["serving_default"](
        **{name: tf.constant(values) for name, values in COLUMNS.items()}
    )
    _, told = exported.ask({"inputs": COLUMNS})
    assert set(response.outputs) == set(expected) == set(told["outputs"])
    for name, values in expected.items():
        tensor = response.outputs[name]
        assert tensor.dtype == values.dtype.as_datatype_enum
        found = tf.make_ndarray(tensor)
        assert found.shape == values.shape, name
        if values.dtype == tf.string:
            assert found.tolist() == values.numpy().tolist(), name
        else:
            assert found == pytest.approx(values.numpy(), rel=1e-6, abs=1e-6)
            assert found.tolist() == told["outputs"][name]
    # The members that clients read.
    assert len(response.outputs["probability"].float_val) == 4
    assert len(response.outputs["label"].string_val) == 4


def test_some_outputs(exported):
    request = request_of(COLUMNS)
    request.output_filter.extend(["label", "value"])
    assert set(exported.predict(request).outputs) == {"label", "value"}
    request.output_filter.append("nothing")
    expected = "INVALID_ARGUMENT", "unknown output 'nothing'"
    assert exported.predict(request) == expected


def test_no_rows(exported):
    response = exported.predict(request_of(dict.fromkeys(COLUMNS, [])))
    assert tf.make_ndarray(response.outputs["label"]).shape == (0,)
    assert tf.make_ndarray(response.outputs["scores"]).shape == (0, 0)


def test_metadata(exported):
    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = "tiny"
    ask = exported.prediction.GetModelMetadata
    expected = "expected the metadata_field signature_def"
    assert answered(ask, request) == ("INVALID_ARGUMENT", expected)
    request.metadata_field.append("signature_def")
    response = answered(ask, request)
    assert response.model_spec.version.value == 1
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    _, told = exported.ask("", "GET", "/v1/models/tiny/metadata")
    told = told["metadata"]["signature_def"]
    assert json_format.MessageToDict(found)["signatureDef"].keys() == (
        told["signature_def"].keys()
    )
    signature = found.signature_def["serving_default"]
    assert signature.inputs["text"].dtype == tf.string.as_datatype_enum
    request.metadata_field.append("other")
    assert answered(ask, request) == ("INVALID_ARGUMENT", expected)


def test_text_b_may_be_left_out_and_values_may_stand_for_all(server):
    request = of_tasks("two", "one", text="\u00e9")
    response = server.predict(request)
    found = tf.make_ndarray(response.outputs["echo"]).tolist()
    assert found == ["\u00e9".encode()] * 2
    assert response.outputs["n"].int_val == [0, 0]
    # One value for several rows.
    request.inputs["text"].ClearField("string_val")
    request.inputs["text"].string_val.append(b"same")
    found = server.predict(request).outputs["echo"].string_val
    assert list(found) == [b"same"] * 2


def with_choices(values, width=None):
    """A request of one row, with choices; `width` is told in their place."""
    request = of_tasks("one")
    request.inputs["choices"].CopyFrom(tf.make_tensor_proto(values))
    if width:
        request.inputs["choices"].tensor_shape.dim[1].size = width
    return request


def test_choices_end_with_empty_texts(server):
    """As a row that has none asks next to one that has two."""
    assert server.predict(with_choices([["", ""]])).outputs["n"].int_val == [0]


def test_versions_labels_and_states():
    versions = Versions(Numbered("3"), Numbered("12"))
    versions.labels = {"stable": "3"}
    for model in versions.models:
        outputs = {"version": described("DT_STRING", 1)}
        model.signatures["serving_default"] = {"outputs": outputs}
    states = versions.states()
    states.append(VersionState("13", "END", "it is damaged"))
    versions.states = lambda: states
    made = Both(models={"tiny": versions})
    with contextlib.closing(made) as server:
        for spec, expected in (
            ({}, 12),
            ({"version": 3}, 3),
            ({"version_label": "stable"}, 3),
        ):
            response = server.predict(of_tasks("one", **spec))
            assert response.model_spec.version.value == expected
            found = response.outputs["version"].string_val
            assert list(found) == [str(expected).encode()]
        for spec, message in (
            ({"name": "other"}, "no model 'other'; there is 'tiny'"),
            ({"version": -4}, "no version -4 of 'tiny'; there is 3, 12"),
            ({"version": 0}, "no version 0 of 'tiny'; there is 3, 12"),
            ({"version_label": "a"}, "no label 'a' of 'tiny'"),
        ):
            found = server.predict(of_tasks("one", **spec))
            assert found == ("NOT_FOUND", message)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "tiny"
        ask = server.status.GetModelStatus
        found = answered(ask, request).model_version_status
        state = get_model_status_pb2.ModelVersionStatus.State
        assert [(one.version, state.Name(one.state)) for one in found] == [
            (3, "AVAILABLE"),
            (12, "AVAILABLE"),
            (13, "END"),
        ]
        assert [one.status.error_code for one in found] == [0, 0, 2]
        assert found[2].status.error_message == "it is damaged"
        request.model_spec.version.value = 12
        (one,) = answered(ask, request).model_version_status
        assert one.version == 12
        request.model_spec.version.value = 4
        message = "no version 4 of 'tiny'"
        assert answered(ask, request) == ("NOT_FOUND", message)


def test_vectors():
    model = Texts()
    outputs = {"embedding": described("DT_FLOAT", 2)}
    model.vector_signature = {"outputs": outputs}
    model.vectors = lambda rows: [[float(len(r.text)), 0.5] for r in rows]
    with contextlib.closing(Both(model=model)) as server:
        asked = of_tasks("one", "two", signature_name="embed")
        response = server.predict(asked)
        assert response.model_spec.signature_name == "embed"
        found = tf.make_ndarray(response.outputs["embedding"])
        assert found.tolist() == [[1.0, 0.5]] * 2


def test_health(server):
    assert server.check() == b"\x08\x01"
    assert server.check(b"\x0a\x15grpc.health.v1.Health") == b"\x08\x01"
    name = b"tensorflow.serving.PredictionService"
    assert server.check(b"\x0a%c%b" % (len(name), name)) == b"\x08\x01"
    assert server.check(b"\x0a\x01x") == ("NOT_FOUND", "no service 'x'")


def damaged(change):
    request = of_tasks("one", "two")
    change(request)
    return request


def set_dtype(request):
    request.inputs["text"].dtype = tf.float32.as_datatype_enum


def set_size(size):
    def change(request):
        request.inputs["text"].tensor_shape.dim[0].size = size

    return change


@pytest.mark.parametrize(
    "request_, message",
    [
        (request_of({"task": ["one"]}), "the input text is missing"),
        (request_of({"text": ["one"]}), "the input task is missing"),
        (
            request_of({"task": ["one"], "text": ["a"], "txt": ["b"]}),
            "unknown input 'txt'; expected text, text_b, task, choices",
        ),
        (
            request_of({"task": "one", "text": ["a"]}),
            "the input task is not string [N]",
        ),
        (damaged(set_dtype), "the input text is not string [N]"),
        (
            request_of({"task": ["one"], "text": ["a"], "choices": ["b"]}),
            "the input choices is not string [N, C]",
        ),
        (with_choices([["b"]], 10**12), "1000000000000 choices, of at most 10"),
        (
            with_choices([["", ""]] * 2),
            "the inputs are not equally long",
        ),
        (
            with_choices([["b", ""]]),
            "row 1: the task one has no choices, but the row has",
        ),
        (damaged(set_size(3)), "the input text has 2 values, not 3"),
        (damaged(set_size(10**12)), "1000000000000 rows, of at most 5"),
        (damaged(set_size(-1)), "-1 rows, of at most 5"),
        (of_tasks(*["one"] * 6), "6 rows, of at most 5"),
        (
            request_of({"task": ["one"] * 2, "text": ["a"] * 3}),
            "the inputs are not equally long",
        ),
        (of_tasks("one", "nobody"), "row 2: unknown task nobody; there are: "),
        (
            of_tasks("one", text="x" * 1851),
            "row 1: text has 1851 bytes, of at most 1850",
        ),
        (of_tasks("broken"), "no number"),
        (
            of_tasks("one", signature_name="eval"),
            "unknown signature 'eval'; there is serving_default",
        ),
    ],
)
def test_what_is_asked_wrongly(server, request_, message):
    code, found = server.predict(request_)
    assert code == "INVALID_ARGUMENT" and found.startswith(message)


def test_bytes_that_are_no_message(server):
    method = "/tensorflow.serving.PredictionService/Predict"
    ask = server.channel.unary_unary(method)
    expected = "INVALID_ARGUMENT", "the message is of another type"
    for content in (b"\xff", b"\x0a\xff", b"\x0a\x03\x0a\x01\xff"):
        assert answered(ask, content) == expected
    code, _ = answered(server.channel.unary_unary(method[:-1]), b"")
    assert code == "UNIMPLEMENTED"
    ask = server.channel.stream_unary(method)
    expected = "INVALID_ARGUMENT", "the request has no message"
    assert answered(ask, iter(())) == expected


def test_what_is_too_large(server):
    code, message = server.predict(of_tasks("one", text="x" * 2000))
    assert code == "RESOURCE_EXHAUSTED" and "2000" in message


def repeated(text, count):
    """One text for so many rows."""
    request = of_tasks(*["one"] * count, text=text)
    del request.inputs["text"].string_val[1:]
    return request


def test_one_value_for_many_rows_counts_as_theirs(server):
    request = repeated("x" * 600, 4)
    assert request.ByteSize() < LIMITS.max_body_bytes
    expected = "the rows have 2400 bytes, of at most 2000"
    assert server.predict(request) == ("RESOURCE_EXHAUSTED", expected)


def test_rows_are_held_as_long_as_they_wait(slow):
    def ask():
        return slow.prediction.Predict.future(repeated("x" * 600, 3))

    held = [ask(), ask()]
    slow.wait_for_metric(b"waiting_rows 6.0")
    with pytest.raises(grpc.RpcError) as refused:
        ask().result()
    assert refused.value.details() == "too many requests are being read"
    slow.model.may_go.set()
    assert all(one.result().outputs for one in held)
    assert ask().result().outputs


def test_what_unpacks_to_much_is_refused(server):
    """A small message may be gigabytes, so no compressed one is taken."""
    code, _ = server.predict(
        of_tasks("one", text="x" * 10**8), compression=grpc.Compression.Gzip
    )
    assert code == "UNIMPLEMENTED"
    assert server.predict(of_tasks("one")).outputs


def test_a_defect(server):
    code, message = server.predict(of_tasks("one", text="defect"))
    assert (code, message) == ("INTERNAL", "the server has failed")
    assert server.predict(of_tasks("one")).outputs


def test_requests_of_both_protocols_share_batches_and_counts(slow):
    first = slow.prediction.Predict.future(of_tasks("one"))
    slow.wait_for_rows(1)
    second = slow.send(slow.rows("two"))
    third = slow.prediction.Predict.future(of_tasks("two"))
    slow.wait_for_metric(b"waiting_rows 3.0")
    slow.model.may_go.set()
    assert first.result().outputs and third.result().outputs
    assert second.getresponse().status == 200
    slow.wait_for_metric(b'{code="200"} 3.0')
    slow.wait_for_metric(b'rows_total{model="tiny",task="two"} 2.0')
    slow.wait_for_metric(b"batch_rows_count 2.0")


def test_too_many_rows(slow):
    first = slow.prediction.Predict.future(of_tasks("one"))
    slow.wait_for_rows(1)
    second = slow.prediction.Predict.future(of_tasks(*["one"] * 5))
    slow.wait_for_metric(b"waiting_rows 6.0")
    code, message = slow.predict(of_tasks("one"))
    assert code == "RESOURCE_EXHAUSTED" and "6 rows are waiting" in message
    slow.model.may_go.set()
    assert first.result().outputs and second.result().outputs


def test_clients_that_go_away_are_not_computed(slow):
    first = slow.prediction.Predict.future(of_tasks("one"))
    slow.wait_for_rows(1)
    gone = slow.prediction.Predict.future(of_tasks("two"))
    slow.wait_for_metric(b"waiting_rows 2.0")
    gone.cancel()
    slow.wait_for_metric(b'code="499"} 1.0')
    slow.model.may_go.set()
    assert first.result().outputs
    assert [row.task for row in slow.model.asked] == [b"one"]


def test_no_answer_in_time():
    limits = dataclasses.replace(LIMITS, timeout=0.2)
    with contextlib.closing(Both(limits, Texts())) as server:
        server.model.may_go.clear()
        expected = "DEADLINE_EXCEEDED", "no answer within 0.2 seconds"
        assert server.predict(of_tasks("one")) == expected
        server.model.may_go.set()
        # A client that sends no message.
        method = "/tensorflow.serving.PredictionService/Predict"

        def never():
            time.sleep(5)
            yield b""

        ask = server.channel.stream_unary(method)
        expected = "DEADLINE_EXCEEDED", "the request did not come"
        assert answered(ask, never()) == expected


def test_health_without_a_message_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(grpc_api, "MESSAGE_S", 4.5)
    with contextlib.closing(Both(model=Texts())) as server:
        ask = server.channel.stream_unary(HEALTH)
        over = threading.Event()

        def never():
            over.wait(SECONDS)
            yield b""

        idle = [ask.future(never(), timeout=60) for _ in range(20)]
        began = time.monotonic()
        assert server.predict(of_tasks("one")).outputs
        assert time.monotonic() - began < 4
        assert {one.code().name for one in idle} == {"DEADLINE_EXCEEDED"}
        over.set()


def test_no_request_is_taken_at_the_end_while_http_answers(slow):
    first = slow.send(slow.rows("one"))
    slow.wait_for_rows(1)
    held = slow.prediction.Predict.future(of_tasks("two"))
    slow.wait_for_metric(b"waiting_rows 2.0")
    # As a signal does.
    slow.core.is_ending = slow.core.is_closed = True
    slow.server.should_exit = True
    wait_for(lambda: answered_not(slow))
    assert slow.predict(of_tasks("one"))[0] == "UNAVAILABLE"
    slow.model.may_go.set()
    assert held.result().outputs
    assert first.getresponse().status == 200


def test_requests_are_taken_until_the_server_is_closed(slow):
    slow.model.may_go.set()
    ready = slow.check()
    slow.core.is_ending = True
    wait_for(lambda: slow.check() != ready)
    # Several times as long as it takes to look for the end.
    time.sleep(0.3)
    assert slow.predict(of_tasks("one")).outputs
    assert slow.check() == b"\x08\x02"


def test_what_was_accepted_is_answered_before_the_end(slow):
    held = [slow.prediction.Predict.future(of_tasks("one")) for _ in range(3)]
    slow.wait_for_metric(b"waiting_rows 3.0")
    slow.server.should_exit = True
    wait_for(lambda: answered_not(slow))
    slow.model.may_go.set()
    assert all(one.result().outputs for one in held)


def answered_not(server):
    return server.check()[0] == "UNAVAILABLE"


def test_tokens():
    made = Both(model=Texts(), tokens=Tokens([TOKEN], 2))
    with contextlib.closing(made) as server:
        expected = "expected Authorization: Bearer and a known token"
        for metadata in (
            (),
            (("authorization", TOKEN),),
            (("authorization", f"Bearer {TOKEN}x"),),
        ):
            found = server.predict(of_tasks("one"), metadata=metadata)
            assert found == ("UNAUTHENTICATED", expected)
        right = (("authorization", f"Bearer {TOKEN}"),)
        for _ in range(2):
            asked = server.predict(of_tasks("one"), metadata=right)
            assert asked.outputs
        code, message = server.predict(of_tasks("one"), metadata=right)
        assert code == "RESOURCE_EXHAUSTED"
        assert message == "too many requests of this token"
        told = server.core.metrics.tell()
        for code, count in (("401", 3), ("429", 1)):
            assert f'requests_total{{code="{code}"}} {count}.0' in told.decode()
        # A probe needs none.
        assert server.check() == b"\x08\x01"


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_tls(tmp_path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=a"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", tmp_path / "key", "-out", tmp_path / "cert"],
        check=True,
        capture_output=True,
    )
    key, cert = ((tmp_path / name).read_bytes() for name in ("key", "cert"))
    made = Both(
        model=Texts(),
        certificate=(key, cert),
        credentials=grpc.ssl_channel_credentials(cert),
    )
    with contextlib.closing(made) as server:
        assert server.predict(of_tasks("one")).outputs
        address = f"127.0.0.1:{server.beside.port}"
        with grpc.insecure_channel(address) as plain:
            code, _ = answered(plain.unary_unary(HEALTH), b"")
            assert code == "UNAVAILABLE"


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        made = grpc_api.GrpcServer(
            type("Core", (), {"limits": LIMITS}),
            grpc_api.Address("127.0.0.1", port),
            SECONDS,
        )

        async def begin():
            async with made.live():
                raise AssertionError("it listens")

        with pytest.raises(UserError, match=f"port {port}, for gRPC; choose"):
            asyncio.run(begin())
