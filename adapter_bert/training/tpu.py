"""Finds this machine's TPU, or why another machine's cannot be used."""

import http.client
import itertools
import os
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NoReturn

import numpy as np
import tensorflow as tf

from adapter_bert.checkpoints import training_state
from adapter_bert.data import input_pipeline
from adapter_bert.data.input_pipeline import Batch, Features
from adapter_bert.errors import UserError, first_line
from adapter_bert.training.prediction import Outputs, RowPredictor
from adapter_bert.training.settings import Hardware
from adapter_bert.training.training_step import Job

# The API of TPU VMs; the client's default is for the retired TPU nodes.
DISCOVERY = "https://tpu.googleapis.com/$discovery/rest?version=v2"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
INSTALL = (
    "pip install --no-deps --require-hashes -r requirements/tpu-client.txt"
)
# Seconds; the metadata server is on the same host.
METADATA_TIMEOUT = 3
# The name of the TPU that a machine has itself.
LOCAL = "local"
# In TensorFlow's error for an operation without an implementation.
NO_KERNELS = "no registered kernels"


def is_local(name: str) -> bool:
    """Tells whether the TPU of this machine has the name."""
    # Kubernetes Engine sets both. TPU_NAME alone may be set on any machine, for
    # use in commands.
    if "TPU_WORKER_ID" in os.environ and name == os.environ.get("TPU_NAME"):
        return True
    return name == _metadata("instance/attributes/instance-id")


def refuse(name: str, zone: str, project: str) -> NoReturn:
    """Refuses another machine's TPU, with its state if known."""
    if "://" in name:
        raise UserError(
            f"the TPU {name!r} is on another machine; run on the TPU VM "
            "itself with --tpu_name=local (TPU nodes, which were reached over "
            "the network, were retired in 2025)"
        )
    zone = zone or _metadata("instance/zone").rpartition("/")[2]
    project = project or _metadata("project/project-id")
    if not zone or not project:
        raise UserError(
            f"the TPU {name!r} is not this machine's own; run on its TPU VM "
            "with --tpu_name=local, or pass --tpu_zone and --gcp_project to "
            "be told its state"
        )
    node = look_up(name, zone, project)
    raise UserError(_reason(name, node, zone, project))


def look_up(name: str, zone: str, project: str) -> dict[str, Any]:
    """Gives the `Node` of a TPU in version 2 of Google Cloud's API."""
    try:
        import cloud_tpu_client
        import google.auth
        import googleapiclient  # noqa: F401
        import oauth2client  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the TPU {name!r} is not this machine's own; run on its TPU VM "
            "with --tpu_name=local, or install cloud-tpu-client to be told "
            f"its state: {INSTALL}"
        ) from error
    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
        client = cloud_tpu_client.Client(
            name, zone, project, credentials, discovery_url=DISCOVERY
        )
        # The public methods send a request for every property, and do not know
        # the runtime's name in this version of the API.
        return client._fetch_cloud_tpu_metadata()
    except Exception as error:
        # Any error of these libraries; the client wraps the API's answers.
        wrapped = isinstance(error, ValueError) and error.__context__
        cause = wrapped or error
        if wrapped and getattr(cause, "status_code", None) == 404:
            raise UserError(
                f"there is no TPU {name!r} in the zone {zone} of the project "
                f"{project}; gcloud compute tpus tpu-vm list --zone={zone} "
                f"--project={project} has their names"
            ) from error
        raise UserError(
            f"the TPU {name!r} is not this machine's own, and Google Cloud "
            f"does not tell its state: {first_line(cause)}; run on its TPU VM "
            "with --tpu_name=local, or mend the access: gcloud auth "
            "application-default login"
        ) from error


def _reason(name: str, node: Mapping[str, Any], zone: str, project: str) -> str:
    state = node.get("state", "UNKNOWN")
    health = node.get("healthDescription")
    vm = "gcloud compute tpus tpu-vm"
    where = f"{name} --zone={zone} --project={project}"
    gone = (
        f"was taken away ({state}); delete it ({vm} delete {where}), create it "
        "anew, and give the same command there, which goes on from the last "
        "checkpoint of --output_dir"
    )
    stopped = f"does not run ({state}); start it: {vm} start {where}"
    reasons = {
        "PREEMPTED": gone,
        "TERMINATED": gone,
        "STOPPED": stopped,
        "STOPPING": stopped,
        "READY": (
            f"is ready ({node.get('acceleratorType', '')}, "
            f"{node.get('runtimeVersion', '')}), but on another machine, and a "
            "TPU serves its own VM alone; run there with --tpu_name=local: "
            f"{vm} ssh {where}"
        ),
    }
    waits = (
        f"is not ready ({': '.join(filter(None, (state, health)))}); wait "
        f"until {vm} describe {where} says READY"
    )
    return f"the TPU {name!r} {reasons.get(state, waits)}"


def _metadata(path: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/{path}",
        headers={"Metadata-Flavor": "Google"},
    )
    # No proxy could reach this server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=METADATA_TIMEOUT) as answer:
            # Some networks answer to every name.
            if answer.headers.get("Metadata-Flavor") != "Google":
                return ""
            return answer.read().decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return ""


def name_of(hardware: Hardware) -> str:
    """Gives the name of the TPU."""
    name = hardware.tpu_name or hardware.master or os.environ.get("TPU_NAME")
    if not name:
        raise UserError(
            "--use_tpu=true needs --tpu_name or the environment variable "
            "TPU_NAME (local on a TPU VM)"
        )
    return name


def resolve(hardware: Hardware) -> Any:
    """Gives the resolver of this machine's own TPU."""
    name = name_of(hardware)
    # Batches and initial values are made in this process.
    if name != LOCAL and not is_local(name):
        refuse(name, hardware.tpu_zone, hardware.gcp_project)
    # For any other name the resolver would search the network.
    return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=LOCAL)


def check(hardware: Hardware, hosts: int, cores: int, advice: str = "") -> None:
    """Checks that the TPU has one host and `--num_tpu_cores` cores."""
    name = name_of(hardware)
    if hosts > 1:
        raise UserError(
            f"the TPU {name!r} has {hosts} hosts; only one is supported"
        )
    if cores != hardware.num_tpu_cores:
        raise UserError(
            f"the TPU {name!r} has {cores} cores, but --num_tpu_cores is "
            f"{hardware.num_tpu_cores}{advice}"
        )


def strategy(hardware: Hardware) -> tf.distribute.Strategy:
    """Gives the strategy for all cores."""
    resolver = resolve(hardware)
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        tpus = tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        why = first_line(error)
        if NO_KERNELS in str(error):
            why = (
                "this TensorFlow is not built for TPUs; docs/accelerators.md "
                "says which one is"
            )
        raise UserError(
            f"the TPU {name_of(hardware)!r} cannot be used: {why}"
        ) from error
    check(hardware, tpus.extended.num_hosts, tpus.num_replicas_in_sync)
    return tpus


def for_tpu(batch: Batch) -> Batch:
    """Makes bfloat16 of uint16, which a TPU's infeed does not know."""
    return {
        name: tf.bitcast(x, tf.bfloat16) if x.dtype == tf.uint16 else x
        for name, x in batch.items()
    }


class LoadHook(tf.compat.v1.train.SessionRunHook):
    """Sets variables of a session when it begins."""

    def __init__(self, values: dict[str, np.ndarray]):
        self._values = values

    def after_create_session(self, session, coord):
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        for name, value in self._values.items():
            assign = variables[name].initializer
            session.run(assign, {assign.inputs[1]: value})


class TpuPredictor(RowPredictor):
    """Predicts with TPUEstimator."""

    def __init__(
        self, job: Job, shards: int, make_estimator: Callable[[int], Any]
    ):
        super().__init__(job, shards)
        self._make_estimator = make_estimator
        self._values: dict[str, np.ndarray] = {}

    def _run(
        self, read: Callable[[], Iterator[list[Batch]]], features: Features
    ) -> Iterator[Outputs]:
        def input_fn(params: Any) -> tf.data.Dataset:
            del params  # Batches have been divided already.
            return input_pipeline.to_dataset(
                lambda: itertools.chain.from_iterable(read()),
                features,
                self._job.length,
                None,
            )

        size = sum(len(batch["row"]) for batch in next(read()))
        checkpoint, _ = training_state.latest_step(self._job.output_dir)
        return self._make_estimator(size).predict(
            input_fn,
            hooks=[LoadHook(self._values)],
            checkpoint_path=checkpoint,
            yield_single_examples=False,
        )

    def load(self, values: dict[str, np.ndarray]) -> None:
        self._values = values

    def close(self) -> None:
        self._values = {}
