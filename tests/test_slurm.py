"""A grid as a job array of a real Slurm on this machine."""

import contextlib
import os
import shutil
import socket
import subprocess

import pytest
from conftest import ROOT, module_fixture, run_command
from sweep_stand_in import RUNS, SCRIPTS, Sweep, counts, wait_for

pytestmark = pytest.mark.older_stack

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={next_port}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its first start have ended.
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@module_fixture
def slurm(tmp_path_factory):
    """Runs Slurm's commands on daemons of its own; yields how."""
    search = f"{os.environ['PATH']}:/usr/sbin"
    missing = [p for p in PROGRAMS if not shutil.which(p, path=search)]
    if missing:
        pytest.skip(f"no Slurm: {', '.join(missing)} not installed")
    if os.getuid():
        pytest.skip("Slurm's daemons are started as root only")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            port=free_port(),
            next_port=free_port(),
        )
    )
    environment = {
        **os.environ,
        "SLURM_CONF": str(configuration),
        "PATH": search,
    }
    daemons = []

    def start(*command):
        with open(folder / f"{command[0]}.log", "w") as log:
            daemons.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log
                )
            )

    def run(*command, check=True):
        return run_command(
            *command, env=environment, cwd=ROOT, check=check
        ).stdout

    start(
        "munged",
        "--foreground",
        "--force",
        f"--socket={folder}/munge.sock",
        f"--key-file={folder}/key",
        f"--pid-file={folder}/munge.pid",
        f"--log-file={folder}/munge.log",
        f"--seed-file={folder}/munge.seed",
    )
    try:
        wait_for((folder / "munge.sock").exists)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        wait_for(lambda: "idle" in run("sinfo", check=False))
        yield run
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            daemon.wait(30)


def submit(slurm, sweep, rows):
    """Submits rows of the grid; returns the array's job number."""
    answer = slurm(
        "sbatch",
        f"--array={rows}",
        f"--export=ALL,PYTHON={sweep.environment['PYTHON']}",
        f"--output={sweep.folder}/slurm-%a.log",
        "--mem=1",
        str(SCRIPTS / "sweep.sbatch"),
        str(sweep.out),
    )
    return answer.split()[-1]


def end(slurm, job):
    """Waits until a job has left the queue."""
    wait_for(lambda: not slurm("squeue", "-h", "-j", job, check=False).strip())


@pytest.mark.gate
def test_an_array_survives_a_failure_a_requeue_and_a_kill(slurm, tmp_path):
    sweep = Sweep(tmp_path)
    sweep.run("--grid")
    failing, requeued, killed, plain = RUNS
    sweep.mark("fail", failing)
    sweep.mark("slow", requeued, killed)
    job = submit(slurm, sweep, "1-4")
    folders = [str(sweep.name(name)) for name in RUNS]
    wait_for(lambda: set(folders[1:3]) <= set(sweep.started()))
    # Both wait in the middle of their runs; from now on they would not.
    wait_for(
        lambda: all(
            (sweep.name(name) / "log.txt").read_text()
            for name in (requeued, killed)
        )
    )
    sweep.mark("slow")
    shown = sweep.run("--status").stdout
    assert f"running: {requeued}" in shown and f"running: {killed}" in shown
    slurm("scancel", "--signal=KILL", f"{job}_3")
    slurm("scontrol", "requeue", f"{job}_2")
    end(slurm, job)
    table = counts(sweep.run("--status").stdout)
    assert table == {"finished": 2, "interrupted": 1, "failed": 1, "all": 4}
    log = (sweep.folder / "slurm-1.log").read_text()
    assert f"{failing}: failed: error: the data is missing" in log
    # What is finished is not run again.
    sweep.mark("fail")
    end(slurm, submit(slurm, sweep, "1-4%2"))
    assert counts(sweep.run("--status").stdout)["finished"] == 4
    assert sorted(sweep.started()) == sorted([*folders, *folders[:3]])
    attempts = (sweep.name(requeued) / "attempts.tsv").read_text()
    assert [line.split("\t")[1] for line in attempts.splitlines()] == [
        "start",
        "start",
        "end 0",
    ]
