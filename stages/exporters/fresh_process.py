"""A process that reloads exported files without this project, as their users will."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.safe_places import safe_place

_SCRIPT = Path(__file__).parent / "standalone.py"
_TICK_SECONDS = 0.2


class FreshProcess:
    """A process of `python -I`, which sees installed packages alone, and the CPU alone: the GPUs' memory is the run's.

    It begins to import TensorFlow at once. It takes one order of `stages.exporters.standalone` after another, and ends
    with `close`, or with its input, where the process that started it was killed.
    """

    def __init__(self) -> None:
        hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | hidden,
            start_new_session=True,  # a terminal's signals are the run's
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to an order.

        Raises:
            UserError: where the file cannot be reloaded, the process has died, or `seconds` have passed.
        """
        name = Path(order["path"]).name
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        until = time.monotonic() + seconds
        with suppress(ConnectionError):  # it has died, which the end of its answers says
            orders.write(f"{json.dumps(dict(order))}\n".encode())
            orders.flush()
        while not select.select([answers], [], [], _TICK_SECONDS)[0]:
            safe_place()
            if time.monotonic() > until:
                raise UserError(
                    f"export: {name} was not reloaded and compared within {seconds:g} seconds",
                    "more time, fewer examples, or no process of its own",
                    f"export.reload_seconds={2 * seconds:g}",
                )
        line = answers.readline()
        if not line:
            self._printed.seek(0)
            last = self._printed.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise UserError(
                f"export: the process that reloads {name} has died with exit code {self._process.wait()} "
                f"({last[0][:300]})",
                "memory for a second process, or none",
                "export.reload=here",
            )
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(
                f"export: {name} cannot be reloaded without this project ({answer['error']})",
                "a format that can hold this network",
                "export=saved_model",
            )
        return dict(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._printed):
            with suppress(ConnectionError):  # of an order that nobody read
                file.close()  # type: ignore[union-attr]


_prestarted: FreshProcess | None = None
_is_needed = True


def prestart() -> None:
    """Start the process that `take` returns: its import of TensorFlow takes seconds, in which a run is evaluated."""
    global _prestarted
    if _is_needed and _prestarted is None:
        with suppress(OSError):  # no room for a process now: the export asks again
            _prestarted = FreshProcess()


def take() -> FreshProcess | None:
    """Return the process that reloads, the prestarted or a new one; None where files are reloaded in this process."""
    global _prestarted
    process, _prestarted = _prestarted, None
    return process or (FreshProcess() if _is_needed else None)


def end_prestarted() -> None:
    """End a prestarted process that nobody took."""
    if _prestarted is not None and (process := take()) is not None:
        process.close()


def reload_here() -> None:
    """Have files reloaded in this process from now on, whatever is set: another job has reloaded such files afresh."""
    global _is_needed
    _is_needed = False
