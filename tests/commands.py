"""Run `python -m <module>` in processes forked from servers that have already imported what the module needs.

A command that imports TensorFlow and MLflow computes for six seconds before it does anything. A forked command takes
hundredths of a second, and the options that it chooses are already composed (see `composed`). Everything else is the
same: arguments, environment, directory, streams, signals, exit code.

Its follower is forked from the command, because importing MLflow would take three seconds (`tests/following.py`).
Tests of the start of a process itself use `sys.executable` instead.
"""

import functools
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from pipeline.system import environment, processes
from tests import composed

ROOT = Path(__file__).resolve().parent.parent

LIGHT = (
    "pipeline.command_line.compose",
    "pipeline.launch.local",
    "pipeline.launch.launcher",
    "pipeline.sweep.grid",
    "pipeline.sweep.sweep",
)
"""Modules that a command needs which ends before it needs TensorFlow."""

HEAVY = (
    *LIGHT, "pipeline.execute.preload", "pipeline.sweep.sync", "pipeline.tracking.mlflow_run",
    "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
)  # fmt: skip
"""Modules that a command needs which trains."""


HEARD_SECONDS = 60.0
"""Seconds within which a command must end after a signal.

On an idle machine it takes ten seconds. A command that ignores the signal trains for hours, or sleeps for minutes.
"""


class Command:
    """A running command, with the interface of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self._stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._connection = connection
        self.pid = self._receive(None)

    @property
    def stdout(self) -> IO[str]:
        """Its output, if it was started with `subprocess.PIPE`."""
        assert self._stdout is not None
        return self._stdout

    def __enter__(self) -> "Command":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self._stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._receive(timeout)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _receive(self, timeout: float | None) -> int:
        self._connection.settimeout(timeout)
        number = self._connection.recv(4)
        assert len(number) == 4, "the process that forks commands has gone"
        return int(struct.unpack("i", number)[0])


def start(
    *arguments: str,
    module: str = "pipeline",
    cwd: Path | str = ROOT,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    trains: bool = True,
) -> Command:
    """Start `python -m <module> <arguments>`.

    Args:
        arguments: The arguments of the command.
        module: The module to run.
        cwd: Its working directory.
        env: The whole environment; None for the environment of this process.
        stdout: As for `subprocess.Popen`; the stream is text.
        stderr: As `stdout`.
        trains: Whether the command needs TensorFlow, itself or for the jobs of a sweep.
    """
    jobs = trains and any(word == "-m" or word.startswith("sweep=") for word in arguments)
    variables = dict(os.environ if env is None else env)
    order = {
        "jobs": jobs,
        "arguments": arguments,
        "module": module,
        "cwd": str(cwd),
        "env": variables,
        "trains": trains,
    }
    return _ordered(order, stdout, stderr)


def start_connected(connection: int, *arguments: str, module: str, stderr: IO[bytes]) -> Command:
    """Start `python -m <module> <number> <arguments>`; `number` is its file descriptor for `connection`."""
    order = {
        "jobs": False,
        "arguments": arguments,
        "module": module,
        "cwd": str(ROOT),
        "env": dict(os.environ),
        "trains": True,
    }
    return _ordered(order, subprocess.DEVNULL, stderr, connection)


def _ordered(order: Mapping[str, Any], stdout: Any, stderr: Any, *passed: int) -> Command:
    own: list[IO[str] | None] = []
    theirs: list[int] = []
    opened: list[int] = []
    for number, stream in ((1, stdout), (2, stderr)):
        reader = None
        if stream == subprocess.PIPE:
            readable, writable = os.pipe()
            reader = os.fdopen(readable)
            opened.append(writable)
        elif stream == subprocess.DEVNULL:
            writable = os.open(os.devnull, os.O_WRONLY)
            opened.append(writable)
        elif stream == subprocess.STDOUT:
            writable = theirs[0]
        else:
            writable = number if stream is None else stream.fileno()
        own.append(reader)
        theirs.append(writable)
    mine, their_connection = socket.socketpair()
    with their_connection:
        _server(HEAVY if order["trains"] else LIGHT).send(order, [their_connection.fileno(), *theirs, *passed])
    for number in opened:
        os.close(number)
    return Command(mine, *own)


def leave_graphs_alone() -> None:
    """Turn off TensorFlow's graph optimizer, which takes a third of the time of a short training.

    This does not start TensorFlow. `tests/engines`, processes of `sys.executable` and benchmarks keep the optimizer.
    """
    tensorflow = import_module("tensorflow")
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def collect_garbage_rarely() -> None:
    """Run the garbage collector less often; by default, it takes a tenth of the time of tracing."""
    gc.set_threshold(50_000, 20, 10)


def run(*arguments: str, timeout: float = 600, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code and its output. For `options` see `start`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = start(*arguments, stdout=out, stderr=err, **options)
        try:
            code = command.wait(timeout)
        except subprocess.TimeoutExpired:
            command.kill()
            raise
        return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def succeed(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as `run` does, and assert that its exit code is 0."""
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_alone(code: str, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, which is not forked, in the project's directory."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _Server:
    """The process that commands are forked from. All workers of a test suite share it; it ends with the last one."""

    def __init__(self, modules: Sequence[str]) -> None:
        suite = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
        address = f"\0commands-{suite}-{len(modules)}"  # abstract: no file that could be left behind
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(address)
            except OSError:  # another worker has started it
                pass
            else:
                listener.listen()
                command = [sys.executable, "-m", __name__, str(listener.fileno()), *modules]
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                self._process = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=ROOT, env=environment)
        self._socket = _connected(address)

    def send(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        text = json.dumps(order).encode()
        socket.send_fds(self._socket, [struct.pack("i", len(text))], list(descriptors))
        self._socket.sendall(text)


_server = functools.cache(_Server)


def _connected(address: str) -> socket.socket:
    deadline = time.monotonic() + HEARD_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except ConnectionRefusedError:  # it is bound already, and listens in a moment
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return connection


def _serve(listener: socket.socket) -> None:
    """Fork the commands that workers request, until all workers have ended."""
    workers = selectors.DefaultSelector()
    workers.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in workers.select():
            orders = cast(socket.socket, key.fileobj)
            if orders is listener:
                workers.register(listener.accept()[0], selectors.EVENT_READ)
            elif not _is_served(orders, workers):
                workers.unregister(orders)
                orders.close()
        if len(workers.get_map()) == 1:
            return


def _is_served(orders: socket.socket, workers: selectors.BaseSelector) -> bool:
    """Fork the next command from `orders`; return False if the connection was closed."""
    length, descriptors, _, _ = socket.recv_fds(orders, 4, 4)
    if not length:
        return False
    text = b""
    while len(text) < struct.unpack("i", length)[0]:
        text += orders.recv(65536)
    order = json.loads(text)
    if order["module"] == "pipeline":
        composed.compose_ahead(order["arguments"])
    if os.fork() == 0:
        for key in [*workers.get_map().values()]:
            cast(socket.socket, key.fileobj).close()
        workers.close()
        _watch(order, *descriptors)
    for number in descriptors:
        os.close(number)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return True


def _watch(order: Mapping[str, Any], connection: int, out: int, err: int, *passed: int) -> None:
    """Fork the command; send its process id, and then its exit code."""
    began = os.fork()
    if began == 0:
        os.close(connection)
        _become(order, out, err, *passed)
    for number in (out, err, *passed):
        os.close(number)
    os.setsid()  # signals to the group are the command's
    with suppress(BrokenPipeError):
        os.write(connection, struct.pack("i", began))
        os.write(connection, struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(began, 0)[1])))
    os._exit(0)


def _become(order: Mapping[str, Any], out: int, err: int, *passed: int) -> None:
    """Run the command in this process, and end the process."""
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = order["cwd"]  # as `python -m` has it
    sys.argv = [order["module"], *map(str, passed), *order["arguments"]]
    if order["jobs"]:
        _start_server_of_jobs()
    if order["trains"]:
        sys.modules["tests.following"].fork_processes()  # without an import, which the command could observe
    code = 1
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _start_server_of_jobs() -> None:
    """Start the server that a sweep has its jobs forked from, which would import TensorFlow as a process of its own.

    Forked instead, while there is but one thread, with the streams, signals and parent that it would have. After that
    this process has no TensorFlow: with it a sweep would fork its jobs itself, from threads that MLflow has started.
    """
    tensorflow, spawn = sys.modules.pop("tensorflow"), util.spawnv_passfds

    def fork(path: bytes, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        if "forkserver" not in arguments[-1]:
            return spawn(path, arguments, descriptors)
        began = os.fork()
        if began:
            return began
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if number > 2 and number not in descriptors:
                with suppress(OSError):
                    os.close(number)
        sys.modules["tensorflow"] = tensorflow
        try:
            exec(arguments[-1], {})
        except SystemExit:
            os._exit(0)  # as it does when the last who could ask it has gone
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    util.spawnv_passfds = fork  # type: ignore[assignment]
    processes.warm_up()
    util.spawnv_passfds = spawn


if __name__ == "__main__":
    connections = socket.socket(fileno=int(sys.argv[1]))
    environment.prepare()
    for _module in sys.argv[2:]:
        import_module(_module)
    if HEAVY[-1] in sys.argv:
        leave_graphs_alone()
        import_module("tests.following")
    composed.remember()
    collect_garbage_rarely()
    gc.freeze()  # else the collector of each child would copy every page
    _serve(connections)
