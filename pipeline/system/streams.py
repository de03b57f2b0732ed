"""Standard streams that never raise, even for a closed pipe or terminal, and one-line errors for full disks."""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.exit_codes import FAILED
from pipeline.system import signals
from stages.errors import UserError

CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)
"""Errors when writing to a stream without a reader; EIO means a closed terminal."""

_errors: dict[int, OSError] = {}
"""The first error when writing to each file descriptor."""


class _Sink(io.FileIO):
    """A file descriptor that accepts every write. Failed writes are dropped; if the output is closed, the run ends."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self._number = number

    def write(self, content: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return super().write(content)
        except OSError as error:
            is_first = _errors.setdefault(self._number, error) is error
            if is_first and self._number == 1 and error.errno in CLOSED:
                signals.request(signals.CLOSED_OUTPUT)
            return memoryview(content).nbytes


def guard() -> None:
    """Make `sys.stdout` and `sys.stderr` streams that never raise.

    A descriptor that is closed at the start (`>&-`) is opened to /dev/null. Otherwise the next opened file would get
    its number and receive the output.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdout = _stream(1, sys.stdout)
    sys.stderr = _stream(2, sys.stderr)


def append_to(file: Path) -> None:
    """Append all output of this process to `file` from now on, including that of native code."""
    with file.open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)


def all_written(code: int) -> int:
    """Return the exit code of a command that has printed its result: 1 instead of 0 if part of the output is lost."""
    sys.stdout.flush()
    error = _errors.get(1)
    if error is None or error.errno in CLOSED:  # a reader such as `head` closes its end when it has enough
        return code
    print(f"error: standard output: {error.strerror}, so part of the output is lost", file=sys.stderr)
    return code or FAILED


def is_read() -> bool:
    """Return whether standard output still has a reader, as far as earlier writes have shown."""
    return 1 not in _errors or _errors[1].errno not in CLOSED


def _stream(number: int, before: Any) -> Any:
    if isinstance(getattr(getattr(before, "buffer", None), "raw", None), _Sink):
        return before  # it may be wrapped in the stream that masks secrets
    if isinstance(before, io.TextIOWrapper):
        before.flush()
    encoding = getattr(before, "encoding", None) or "utf-8"
    errors = "backslashreplace" if number == 2 else "replace"
    buffered = io.BufferedWriter(_Sink(number))  # type: ignore[type-var]
    return io.TextIOWrapper(buffered, encoding, errors, line_buffering=number == 2 or os.isatty(number))


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def no_room(error: BaseException) -> UserError | None:
    """Return the UserError for an error caused by a full or read-only disk; None for any other error."""
    cause = None if isinstance(error, UserError) else error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            problem = f"{cause.filename or 'a file'} cannot be written ({os.strerror(cause.errno)})"
            return UserError(
                problem,
                "a folder on a disk with free space that you can write to",
                "the same command again, once there is free space; it resumes the run",
            )
        cause = cause.__cause__
    return None
