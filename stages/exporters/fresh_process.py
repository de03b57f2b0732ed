"""A process that reloads exported files without this project, as their users will."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.safe_places import safe_place

_SCRIPT = Path(__file__).parent / "standalone.py"
_TICK_SECONDS = 0.2


class FreshProcess:
    """`python -I`, which sees installed packages alone, has already begun to import `runtime`.

    It computes on the CPU, as the GPUs' memory is the run's. It ends with `close`, and with this process, whose end
    closes its input.
    """

    def __init__(self, runtime: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | hidden
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_SCRIPT), runtime],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # a terminal's signals are the run's
        )

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the answer to an order of `stages.exporters.standalone`.

        Raises:
            UserError: where the file cannot be reloaded, the process has died, or `seconds` have passed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        name, until = Path(order["path"]).name, time.monotonic() + seconds
        try:
            self._process.stdin.write(f"{json.dumps(dict(order))}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died(name) from error
        while not select.select([self._process.stdout], [], [], _TICK_SECONDS)[0]:
            safe_place()
            if time.monotonic() > until:
                raise UserError(
                    f"export: {name} was not reloaded and compared within {seconds:g} seconds",
                    "more time, fewer examples, or no process of its own",
                    f"export.reload_seconds={2 * seconds:g}",
                )
        line = self._process.stdout.readline()
        if not line:
            raise self._died(name)
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(
                f"export: {name} cannot be reloaded without this project ({answer['error']})",
                "a format that can hold this network",
                "export=saved_model",
            )
        return dict(answer)

    def _died(self, name: str) -> UserError:
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        code = self._process.wait()
        return UserError(
            f"export: the process that reloads {name} has died with exit code {code} ({last[0][:300]})",
            "memory for a second process, or none",
            "export.reload=here",
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                with suppress(BrokenPipeError):  # of an order that nobody read
                    file.close()


@contextmanager
def fresh_processes(runtimes: set[str]) -> Iterator[dict[str, FreshProcess]]:
    """Yields a process for each runtime, and ends them with the block."""
    processes: dict[str, FreshProcess] = {}
    try:
        for runtime in sorted(runtimes):
            processes[runtime] = FreshProcess(runtime)
        yield processes
    finally:
        for process in processes.values():
            process.close()
