"""This machine's TPU, and what is told of another by its name."""

import importlib.util
import json
import os
import re
import sys
from types import SimpleNamespace

import google_cloud
import pytest
import refusals
import tensorflow as tf
from conftest import ROOT, module_fixture, run_command

from adapter_bert.errors import UserError
from adapter_bert.training import tpu
from adapter_bert.training.settings import Hardware
from adapter_bert.training.strategy import StrategyEngine

# Where `make tpu-client` puts what a lookup needs, or TPU_CLIENT names.
CLIENT = os.environ.get("TPU_CLIENT", os.path.join(sys.prefix, "tpu-client"))
READY = {
    "state": "READY",
    "acceleratorType": "v3-8",
    "runtimeVersion": "tpu-vm-tf-2.15.1-se",
}
NODES = {
    "ready": READY,
    "new": {"state": "CREATING"},
    "ill": {"state": "REPAIRING", "healthDescription": "too hot"},
    "gone": {"state": "PREEMPTED"},
    "off": {"state": "STOPPED"},
    "secret": 403,
}
WHERE = f"--zone={google_cloud.ZONE} --project={google_cloud.PROJECT}"
# Name -> the words that tell its state.
TOLD = {
    "ready": r"is ready \(v3-8, tpu-vm-tf-2.15.1-se\), but on another machine",
    "new": r"is not ready \(CREATING\); wait",
    "ill": r"is not ready \(REPAIRING: too hot\); wait",
    "gone": r"was taken away \(PREEMPTED\); delete it .*delete gone --zone",
    "off": r"does not run \(STOPPED\); start it: .*start off --zone",
    "secret": "does not tell its state: .*403.*so it is.*; run on its TPU VM",
    "none": f"there is no TPU 'none' in the zone {google_cloud.ZONE}",
}


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch):
    """Neither this machine's environment nor a real cloud counts."""
    for name in ("TPU_NAME", "TPU_WORKER_ID"):
        monkeypatch.delenv(name, raising=False)
    # Nothing answers there.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")


def set_all(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_the_machine_knows_the_name_of_its_own_tpu(monkeypatch):
    assert not tpu.is_local("mine")
    with google_cloud.serve("mine", {}) as variables:
        set_all(monkeypatch, variables)
        assert tpu.is_local("mine")
        assert not tpu.is_local("other")
        # No one may have asked a proxy.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        assert tpu.is_local("mine")


def test_whoever_else_answers_is_not_believed(monkeypatch):
    with google_cloud.serve("mine", {}, flavor="Hotel") as variables:
        set_all(monkeypatch, variables)
        assert not tpu.is_local("mine")


def test_a_container_knows_it_by_two_variables(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "mine")
    assert not tpu.is_local("mine")
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    assert tpu.is_local("mine")
    assert not tpu.is_local("other")
    assert tpu.name_of(Hardware(use_tpu=True, master="flag")) == "flag"
    # It is tried as the local one.
    refusals.check(check_devices, "TPU 'mine' cannot be used")


@pytest.mark.parametrize(
    "place, part",
    [
        (("grpc://10.0.0.1:8470", "", ""), "run on the TPU VM itself"),
        (("other", "z", ""), "pass --tpu_zone and --gcp_project"),
        (("other", "", "p"), "pass --tpu_zone and --gcp_project"),
    ],
)
def test_what_is_missing_for_a_lookup_is_told(place, part):
    """An address needs none."""
    refusals.check(lambda: tpu.refuse(*place), part)


def test_without_the_client_its_installation_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    with pytest.raises(UserError, match="install cloud-tpu-client") as error:
        tpu.look_up("other", "z", "p")
    command = str(error.value).rpartition(": ")[2]
    assert command == tpu.INSTALL
    assert (ROOT / command.split()[-1]).exists()


@pytest.mark.parametrize("name", [n for n, x in NODES.items() if x != 403])
def test_every_state_is_one_line(name, monkeypatch):
    monkeypatch.setattr(tpu, "look_up", lambda *_: NODES[name])
    with pytest.raises(UserError, match=TOLD[name]) as error:
        tpu.refuse(name, google_cloud.ZONE, google_cloud.PROJECT)
    assert WHERE in str(error.value)


def pins(name):
    """The versions in a lock, package and marker -> version."""
    text = (ROOT / "requirements" / name).read_text()
    lines = re.findall(r"^([\w.-]+)==(\S+)(.*?)\\?$", text, re.MULTILINE)
    return {
        (package, marker.strip()): version for package, version, marker in lines
    }


@pytest.mark.parametrize("lock", ["tf215-cpu.txt", "tf215-cuda.txt"])
def test_the_clients_lock_changes_no_other(lock):
    mine, theirs = pins("tpu-client.txt"), pins(lock)
    shared = {key for key in mine if key[0] in {name for name, _ in theirs}}
    assert len(shared) >= 6
    assert {key: mine[key] for key in shared} == {
        key: theirs.get(key) for key in shared
    }
    assert not {"protobuf", "numpy", "absl-py"} & {name for name, _ in mine}


ASK = """
import json, sys
import adapter_bert.start_tensorflow
from adapter_bert.training import tpu
from adapter_bert.training.settings import Hardware
from adapter_bert.errors import UserError
for name in sys.argv[1:]:
    try:
        tpu.resolve(Hardware(use_tpu=True, tpu_name=name))
        print(json.dumps("served"))
    except UserError as error:
        print(json.dumps(str(error)))
"""


@module_fixture
def answers(tmp_path_factory):
    """What a program with the client says of every name."""
    installed = importlib.util.find_spec("cloud_tpu_client")
    if not installed and not os.path.isdir(CLIENT):
        pytest.skip(f"no {CLIENT}; `make tpu-client` makes it")
    names = [*TOLD, "mine"]
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("TPU_", "GOOGLE_", "KUBE_"))
    }
    with google_cloud.serve("mine", NODES) as variables:
        # A process of its own: TensorFlow must find the client when it is
        # loaded, as it does where the client is installed.
        done = run_command(
            sys.executable,
            "-c",
            ASK,
            *names,
            check=True,
            cwd=ROOT,
            env={
                **inherited,
                **variables,
                "PYTHONPATH": os.pathsep.join([CLIENT, str(ROOT)]),
                # No credentials of whoever runs this.
                "CLOUDSDK_CONFIG": str(tmp_path_factory.mktemp("none")),
            },
            timeout=120,
        )
    return dict(zip(names, map(json.loads, done.stdout.splitlines())))


@pytest.mark.older_stack
@pytest.mark.parametrize("name", TOLD)
def test_google_cloud_tells_its_state(name, answers):
    assert re.search(TOLD[name], answers[name])
    # Its own name is as good as `local`.
    assert answers["mine"] == "served"


# The TPU itself


def check_devices(**hardware):
    StrategyEngine(Hardware(use_tpu=True, **hardware)).check_devices()


@refusals.table(
    {
        "no name": (check_devices, "--tpu_name"),
        "none": (
            lambda: check_devices(tpu_name="local"),
            "'local' cannot be used",
            "not built for TPUs",
        ),
        # Without metadata there is no zone and no project.
        "another machine's": (
            lambda: check_devices(tpu_name="far"),
            "'far' is not this machine's own",
        ),
    }
)
def test_no_tpu_is_one_clear_line(call, parts):
    refusals.check(call, *parts)


@pytest.mark.parametrize(
    "hosts, cores, part",
    [
        (1, 8, None),
        (1, 4, "has 4 cores, but --num_tpu_cores is 8"),
        (1, 16, "has 16 cores, but --num_tpu_cores is 8"),
        (2, 8, "has 2 hosts"),
    ],
)
def test_a_tpu_has_one_host_and_the_cores_asked_for(
    monkeypatch, hosts, cores, part
):
    """There is none here: TensorFlow's part is made up."""
    metadata = SimpleNamespace(
        extended=SimpleNamespace(num_hosts=hosts), num_replicas_in_sync=cores
    )
    for place, name, made_up in (
        (tf.config, "experimental_connect_to_cluster", None),
        (tf.tpu.experimental, "initialize_tpu_system", None),
        (tf.distribute, "TPUStrategy", metadata),
    ):
        monkeypatch.setattr(place, name, lambda _, value=made_up: value)
    hardware = Hardware(use_tpu=True, tpu_name="local", num_tpu_cores=8)
    if part is None:
        assert tpu.strategy(hardware) is metadata
    else:
        refusals.check(lambda: tpu.strategy(hardware), part)
