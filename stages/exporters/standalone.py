"""Script `python -I standalone.py <runtimes> [<socket>]`: reloads exported files without this project.

It also measures how long they take to answer. From each line of its input it reads an order in JSON: `loader`, `path`
of the exported file, `images` (an .npy file), `batch`, `calls`, and `answers`, the .npy file to write. To each it
answers with a line of JSON: `milliseconds`, the median time of one example, and `modules`, the top-level modules it has
imported; or `error`. It ends with its input, and with the process that started it.

Given the number of a listening socket, it forks a process for each connection, which takes orders and answers there.
Their first line is `environment` and `folder`, its working directory. Where the process dies, a line with `died`, its
exit code and the last that it printed, is written to the connection.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any, NoReturn

import numpy as np

_KILLED_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux' prctl(2)."""

_POLL_MS = 100


def measure(loader: str, path: str, images: str, answers: str, batch: int, calls: int) -> float:
    """Reloads the file `path`, writes its answers for the images, and returns the milliseconds that one takes."""
    predict = runpy.run_path(loader)["load"](path)
    pixels = np.load(images)
    rows = [predict(pixels[begin : begin + batch]) for begin in range(0, len(pixels), batch)]
    np.save(answers, np.concatenate([np.asarray(row, np.float32) for row in rows]))
    predict(pixels[:1])
    times = []
    for call in range(calls):
        one = pixels[call % len(pixels)][None]
        began = time.perf_counter()
        predict(one)
        times.append(time.perf_counter() - began)
    return 1000 * float(np.median(times))


def main() -> None:
    """Answers orders until the input ends."""
    for name in ("pipeline", "stages"):
        sys.modules[name] = None  # type: ignore[assignment]  # cannot be imported, even where they are installed
    _end_with_parent()
    if len(sys.argv) > 2:
        _Server(socket.socket(fileno=int(sys.argv[2]))).serve(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    orders: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, orders), daemon=True).start()
    _import(sys.argv[1])
    _answer(orders, answers)


def _end_with_parent() -> None:
    """Has the system kill this process when the one that started it ends, where the system can: Linux.

    The end of the input shows it anywhere, but not while a third process, forked from that one, holds the other end.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)


def _import(runtimes: str) -> None:
    """Imports the first of `runtimes` that is installed.

    TensorFlow alone does without Keras, which it imports for `tf.keras` and which takes scikit-learn and matplotlib
    along: half of the time. A loader that uses Keras imports it in its turn.
    """
    gc.disable()  # the modules stay: the collector would look through them again and again, here and in every fork
    without_keras = runtimes == "tensorflow"
    if without_keras:
        sys.modules["keras"] = None  # type: ignore[assignment]
    for runtime in runtimes.split(","):
        with suppress(ImportError):
            importlib.import_module(runtime)
            break
    if without_keras:
        del sys.modules["keras"]
    gc.freeze()
    gc.enable()


def _read(lines: IO[str], orders: SimpleQueue[Any]) -> None:
    """Puts every line into `orders`. They end with the process that gives orders, and so does this one."""
    for line in lines:
        orders.put(json.loads(line))
    os._exit(0)


def _answer(orders: SimpleQueue[Any], answers: IO[str]) -> NoReturn:
    while True:
        order = orders.get()
        try:
            milliseconds = measure(**order)
            modules = sorted({name.partition(".")[0] for name, module in sys.modules.items() if module})
            answer: dict[str, Any] = {"milliseconds": milliseconds, "modules": modules}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


class _Server:
    """Forks a process for each connection; ends with its input, and all of them with it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._forked: dict[int, tuple[int, socket.socket, IO[bytes]]] = {}
        """Process, connection and what it prints, by the file number of the connection."""
        self._events = select.poll()
        self._events.register(0, select.POLLIN)
        self._events.register(listener, select.POLLIN)

    def serve(self, runtimes: str) -> NoReturn:
        """Imports one of `runtimes` at the first connection."""
        self._events.poll()
        _import(runtimes)
        while True:
            for file, _ in self._events.poll(_POLL_MS if self._forked else None):
                if file == 0:
                    os._exit(0)  # by which those that were forked end
                if file == self._listener.fileno():
                    self._fork()
                else:  # the other end has hung up
                    self._events.unregister(file)
                    os.kill(self._forked[file][0], signal.SIGKILL)
            for file, (pid, _, _) in list(self._forked.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self._forget(file, os.waitstatus_to_exitcode(status))

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        server = os.getpid()
        pid = os.fork()
        if pid:
            self._forked[connection.fileno()] = pid, connection, printed
            self._events.register(connection, 0)  # hanging up is an event without being asked for
            return
        try:
            _end_with_parent()
            if os.getppid() == server:
                self._take_orders(connection, printed)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _take_orders(self, connection: socket.socket, printed: IO[bytes]) -> None:
        for _, other, _ in self._forked.values():
            other.close()  # held here, it would not seem to hang up
        self._listener.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(printed.fileno(), number)
        lines = connection.makefile("r")
        answers = connection.makefile("w")
        first = json.loads(lines.readline())
        os.environ.clear()
        os.environ.update(first["environment"])  # the number of threads, which the first operation reads
        os.chdir(first["folder"])
        orders: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_read, args=(lines, orders), daemon=True).start()
        _answer(orders, answers)

    def _forget(self, file: int, code: int) -> None:
        """Says how the process of connection number `file` has ended, if anybody still listens."""
        _, connection, printed = self._forked.pop(file)
        with suppress(KeyError):
            self._events.unregister(file)
        printed.seek(0)
        last = printed.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        with connection, printed, suppress(OSError):
            connection.sendall(f"{json.dumps({'died': f'exit code {code} ({last[0][:300]})'})}\n".encode())


if __name__ == "__main__":
    main()
