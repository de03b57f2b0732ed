"""Processes that answer requests, so that one of them can crash, hang or run out of memory and the check goes on.

A request is a line of JSON, `{"do": name, …}`. The answer is a line, `{"result": …}` or `{"error": …}`.
"""

import json
import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT


class OutOfTime(Exception):  # noqa: N818  # a result, not an error
    """The time budget is used up."""


class Failed(Exception):  # noqa: N818
    """What was asked for failed; the message is the first line of the error."""


class Budget:
    """Counts the seconds that are left."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.seconds = seconds
        self._row_ends = math.inf

    @property
    def used(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return min(self.seconds, self._row_ends) - self.used

    @contextmanager
    def row(self, seconds: float) -> Iterator[None]:
        """Give the block at most `seconds` of the budget, so that one slow row does not use it up."""
        self._row_ends = self.used + seconds
        try:
            yield
        finally:
            self._row_ends = math.inf

    def need(self, seconds: float = 0.0) -> None:
        """Raise OutOfTime if no more than `seconds` are left."""
        if self.left <= seconds:
            raise OutOfTime


class Answerer:
    """A process that answers requests. It starts at the first one, and again after it has died."""

    def __init__(self, command: Sequence[str], log: Path, budget: Budget) -> None:
        self._command = command
        self._log = log
        self._budget = budget
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str, **arguments: object) -> Any:
        """Return the result of a request.

        Raises:
            OutOfTime: if the budget ends before the answer comes. The process is ended.
            Failed: if it answers with an error, or dies.
        """
        self._budget.need()
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process)
        except BrokenPipeError:
            line = b""
        if not line:
            code = process.wait()
            self._process = None
            raise Failed(f"the process ended with exit code {code} ({self._log.name})")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
            )

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line of a process; nothing if it has ended."""
        assert process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(self._budget.left, 0.0)):
                    self.close()
                    raise OutOfTime
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    return b""
                line += part
        return line


def answer_requests(functions: Mapping[str, Callable[..., object]]) -> None:
    """Answer the requests of standard input until it ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            content: dict[str, object] = {"result": functions[request.pop("do")](**request)}
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            content = {"error": first_line(error)}
        print(json.dumps(content), file=answers, flush=True)


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]
