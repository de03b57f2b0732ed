"""`python -m tests.engines.slurm.daemons`: a Slurm of three nodes on loopback until Ctrl-C, its files in a new folder.

The nodes are `slurmd` processes with ports of their own, and claim more processors than the machine may have. No
cgroups, no accounting, no system service: a `munged` with a key of its own, a `slurmctld`, and nothing is left of them.
"""

import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.commands import ROOT
from tests.servers import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""Their names are addresses, at which the members of a cluster call each other."""
SIZE = "CPUs=4 RealMemory=4096"
"""Of each; the memory in MiB."""
START_SECONDS = 60.0
END_SECONDS = 120.0
PATH = f"{os.environ['PATH']}:/usr/sbin"

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=20
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""`cred_expire` is the delay, in seconds, of a job that is queued again; two minutes by default."""


@contextmanager
def slurm() -> Iterator[Path]:
    """A Slurm of its own, ended with the block or this process; sets SLURM_CONF, yields the folder of its files."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)} (make test-engines installs it)")
    before = os.environ.get("SLURM_CONF")
    command = [sys.executable, "-m", __name__]
    # It ends when its standard input does, however this process ends.
    with subprocess.Popen(
        command, cwd=ROOT, text=True, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        file = keeper.stdout.readline().strip().rpartition("=")[2]
        assert file, "Slurm has not started"
        os.environ["SLURM_CONF"] = file
        try:
            yield Path(file).parent
        finally:
            os.environ.pop("SLURM_CONF")
            if before is not None:
                os.environ["SLURM_CONF"] = before
            keeper.stdin.close()
            keeper.wait(END_SECONDS)


def hold() -> None:
    """Start Slurm, print the address of its configuration, and end it when standard input does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # munged serves other users, too
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        try:
            _start(folder)
            print(f"export SLURM_CONF={folder}/slurm.conf", flush=True)
            with suppress(KeyboardInterrupt):
                sys.stdin.read()
        finally:
            _end(folder)


def _start(folder: Path) -> None:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    lines = [f"NodeName={node} NodeHostname={host} NodeAddr={node} Port={free_port()} {SIZE}" for node in NODES]
    lines.append(CONFIGURATION.format(host=host, port=free_port(), user=user, folder=folder))
    text = "\n".join(lines)
    (folder / "slurm.conf").write_text(text)
    (folder / "state").mkdir()
    _start_munge(folder)
    _run("slurmctld", "-i")
    for node in NODES:
        _run("slurmd", "-N", node)
    deadline = time.monotonic() + START_SECONDS
    while ask("sinfo", "--noheader", "--format=%T %D") != f"idle {len(NODES)}":
        assert time.monotonic() < deadline, "".join(log.read_text() for log in folder.glob("*.log"))
        time.sleep(0.2)


def _start_munge(folder: Path) -> None:
    own = folder / "munge"
    own.mkdir()
    (own / "key").write_bytes(secrets.token_bytes(1024))
    (own / "key").chmod(0o400)
    user = pwd.getpwnam("munge") if os.geteuid() == 0 else None  # it takes no key that another user owns
    if user is not None:
        for path in (own, own / "key"):
            os.chown(path, user.pw_uid, user.pw_gid)
    own.chmod(0o755)
    files = {"--key-file": "key", "--socket": "socket", "--pid-file": "pid", "--log-file": "log", "--seed-file": "seed"}
    options = [f"{option}={own / name}" for option, name in files.items()]
    _run("munged", *options, user=None if user is None else user.pw_uid)


def _end(folder: Path) -> None:
    """End the daemons, and whatever their jobs have left."""
    for path in (*folder.glob("slurm*.pid"), folder / "munge" / "pid"):
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            daemon = psutil.Process(int(path.read_text()))
            daemon.terminate()
            with suppress(psutil.TimeoutExpired):
                daemon.wait(10)
                continue
            daemon.kill()
    for process in processes(folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def processes(folder: Path, node: str | None = None) -> list[psutil.Process]:
    """Return the processes of jobs: those that Slurm has started, on `node` or on any."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables = process.environ()
            if variables.get("SLURM_CONF") == str(folder / "slurm.conf") and "SLURM_JOB_ID" in variables:
                if node not in (None, variables.get("SLURMD_NODENAME")):
                    continue
                found.append(process)
    return found


def ask(*command: str) -> str:
    """Return what a command of Slurm's prints, without white space around it."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()


def _run(program: str, *arguments: str, user: int | None = None) -> None:
    path = shutil.which(program, path=PATH)
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=60, check=False, user=user)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    hold()
