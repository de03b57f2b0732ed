"""The connection to Ray: to the cluster at an address, or to one of this command's own, which ends with it."""

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from pipeline.config.cluster import RayCluster
from pipeline.engines.rendezvous import split_address
from pipeline.system import machine, signals
from pipeline.system.signal_listener import STOPS
from stages.errors import UserError

OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes; only messages pass through it."""

RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")
"""The command `ray` of this environment."""

POLL_SECONDS = 0.2

FOLDER = "pipeline-ray-"
"""Beginning of the names of folders for Ray's files. Ray's sockets are in them, whose paths have 107 bytes at most."""

LOCK = "lock"

END_SECONDS = 3.0
"""Seconds for Ray's processes to end by themselves."""

OF_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
"""Variables that Ray reads as it is imported and started: it reports to nobody, and prints without colors."""

OF_OWN = {
    **OF_RAY,
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # with it, Ray's servers listen on all interfaces
    "RAY_gcs_server_request_timeout_seconds": "20",  # 60 by default, by which its agents outlive a killed command
}
"""The same for a cluster of the command's own, with a token that nobody else has."""


def require_ray() -> None:
    """Raises UserError where Ray is not installed."""
    if find_spec("ray") is None:
        raise UserError(
            "cluster=ray: the package ray is not installed", "the extra ray of this project", "pip install ray"
        )


def address_of(settings: RayCluster) -> str | None:
    """Returns the address of the cluster to use, or None for one of the command's own.

    Raises:
        UserError: where it is none.
    """
    address = settings.address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        try:
            if address.startswith("ray://"):
                raise ValueError("it is Ray Client's, which this project does not use")
            split_address(address)
        except (ValueError, UserError) as error:
            raise _no_address(settings, str(error)) from error
    return address


@contextmanager
def connected(settings: RayCluster) -> Iterator[None]:
    """Connects this process to Ray inside the block; a cluster of its own is started, and ended with the block.

    Raises:
        UserError: where nobody answers at the address within `cluster.timeout_seconds`, or no Ray of this version.
    """
    require_ray()
    address = address_of(settings)
    if address is not None:
        _probe(settings, address)
    with own_folder() as folder, _variables(address):
        import ray

        if ray.is_initialized():  # by a notebook's own call
            yield
            return
        others = psutil.Process().children()
        started: list[psutil.Process] = []
        try:
            try:
                with _kept_handlers():
                    _initialize(settings, address, folder)
            finally:
                started = [process for process in psutil.Process().children() if process not in others]
            signals.check()
            yield
        finally:
            _shut_down(started)


@contextmanager
def own_folder() -> Iterator[str]:
    """Yields a new folder for Ray's files, removed with the block; those that killed commands left are removed first.

    Its lock tells: it is held as long as the command lives.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), (left / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as folder,
        Path(folder, LOCK).open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _shut_down(started: Sequence[psutil.Process]) -> None:
    """Ends the connection, and the processes that Ray has started: by itself it leaves some of them for a minute."""
    import ray

    processes = [*started]
    for process in started:
        with suppress(psutil.Error):
            processes += process.children(recursive=True)
    ray.shutdown()
    _gone, alive = psutil.wait_procs(processes, END_SECONDS)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()


@contextmanager
def _kept_handlers() -> Iterator[None]:
    """Restores the handlers of signals after the block, in which Ray takes SIGTERM for itself."""
    handlers = {number: signal.getsignal(number) for number in STOPS}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _initialize(settings: RayCluster, address: str | None, folder: str) -> None:
    import ray

    own: dict[str, Any] = {
        "num_cpus": machine.usable_cores(),
        "num_gpus": len(machine.gpus()),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": folder,
    }
    try:
        options = own if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # Exception itself, ConnectionError, RuntimeError, ValueError …
        reason = str(error).strip().splitlines()[0]
        if address is not None:
            raise _no_address(settings, reason) from error
        raise UserError(
            f"cluster=ray: Ray could not be started on this machine ({reason})",
            "a machine with the time and memory for it",
            "cluster=local",
        ) from error


def _probe(settings: RayCluster, address: str) -> None:
    """Raises UserError where no Ray of this version answers at `address`; `ray.init` would wait without end."""
    try:
        socket.create_connection(split_address(address), timeout=settings.timeout_seconds).close()
    except OSError as error:
        raise _no_address(settings, error.strerror or str(error)) from error
    deadline = time.monotonic() + settings.timeout_seconds
    with tempfile.TemporaryFile("w+") as printed:
        check = subprocess.Popen([*RAY, "health-check", f"--address={address}"], stdout=printed, stderr=printed)
        try:
            while check.poll() is None:
                signals.pause(POLL_SECONDS)
                if time.monotonic() > deadline:
                    raise _no_address(settings, f"nothing that answers within {settings.timeout_seconds:g} s")
        finally:
            check.kill()
            check.wait()
        if check.returncode:
            printed.seek(0)
            lines = printed.read().strip().splitlines()
            raise _no_address(settings, lines[-1] if lines else f"`ray health-check` says {check.returncode}")


def _no_address(settings: RayCluster, reason: str) -> UserError:
    is_set = settings.address is not None
    setting = f"cluster.address={settings.address}" if is_set else f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}"
    return UserError(
        f"{setting}: there is no Ray to be used ({reason})",
        "host:port of a Ray cluster that this machine is a node of, as `ray start --head` prints it",
        "cluster.address=null" if is_set else "unset RAY_ADDRESS",
    )


@contextmanager
def _variables(address: str | None) -> Iterator[None]:
    """Sets the variables that Ray reads as it is imported and started."""
    before = dict(os.environ)
    own = OF_RAY if address is not None else {**OF_OWN, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
