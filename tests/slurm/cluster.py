"""A Slurm cluster of this one machine, for the length of a test: munged, slurmctld and slurmd with ports and directories of their own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol", "sinfo")
PATIENCE = 60.0
TO_LEARN = 240.0
"""Seconds that tasks may take to begin and to learn: a dozen processes share two busy cores, and each imports PyTorch first."""
CONF = """
ClusterName=epidemic
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} NodeAddr=127.0.0.1 CPUs=6 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def cluster(root):
    """A cluster whose SLURM_CONF is in the environment; nothing of it is left behind. Skipped, loudly, where it cannot be."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        why = f"{missing[0]} is not installed" if missing else "only root can start its daemons"
        pytest.skip(f"NO SLURM here ({why}; apt-get install slurm-wlm munge): runs on a cluster are not tested")
    for name in ("state", "spool", "munge"):
        (root / name).mkdir(parents=True)
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf = root / "slurm.conf"
    conf.write_text(CONF.format(host=host, ports=_free_ports(2), root=root))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(conf)
    daemons = []
    try:
        with (root / "daemons.log").open("wb") as log:

            def start(*command):
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

            files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            start("munged", "--foreground", "--force", *(f"--{k}={root}/munge/{v}" for k, v in files.items()))
            until("munged answers", (root / "munge" / "socket").exists)
            start("slurmctld", "-D")
            start("slurmd", "-D")
            until("the cluster is up", lambda: says("sinfo", "-h", "-o", "%T") == "idle", root)
        yield
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            clear()
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in _ours(conf):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.environ.pop("SLURM_CONF")
        os.environ.update({} if before is None else {"SLURM_CONF": before})


def clear():
    """Cancel all tasks, and wait until they are gone."""
    subprocess.run(["scancel", "-u", "root"], capture_output=True, timeout=10, check=False)
    until("all tasks are gone", lambda: not says("squeue", "-h"))


def says(*command):
    """What a command of Slurm prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def until(what, holds, logs=None, patience=PATIENCE):
    """Wait for something; whatever happens meanwhile is not waited for longer than needed."""
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            told = "".join(f"\n{file}:\n{file.read_text()[-3000:]}" for file in logs.rglob("*.log")) if logs else ""
            raise TimeoutError(f"not within {patience:g} s: {what}{told}")
        time.sleep(0.1)


def processes(*words):
    """The processes whose command line has all these words."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            given = file.read_bytes().decode(errors="replace").split("\0")
            if all(word in given for word in words):
                found.append(int(file.parent.name))
    return found


def children(parent):
    """The ranks that a process has started."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(file.read_text().rpartition(")")[2].split()[1]) == parent:
                ranks = b"spawn_main" in (file.parent / "cmdline").read_bytes()
                found += [int(file.parent.name)] if ranks else []
    return found


def _ours(conf):
    """Whatever was started by this cluster and is still there."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"SLURM_CONF={conf}".encode() in file.read_bytes().split(b"\0") and int(file.parent.name) != os.getpid():
                yield int(file.parent.name)


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found
