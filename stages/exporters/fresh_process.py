"""A process that reloads exported files without this project, as their users will."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.errors import UserError
from stages.reporter import safe_place

_SCRIPT = Path(__file__).with_name("reload.py")
_TICK_SECONDS = 0.2

_prestarted: subprocess.Popen[bytes] | None = None


def prestart() -> None:
    """Start the process that the next `reload_files` asks: it imports TensorFlow while a run is evaluated.

    It is one of `python -I`, which sees installed packages alone, and the CPU alone: the GPUs' memory is the run's. It
    ends with its input, also where the process that started it was killed.
    """
    global _prestarted
    if _prestarted is None:
        hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        _prestarted = subprocess.Popen(
            [sys.executable, "-I", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | hidden,
            start_new_session=True,  # a terminal's signals are the run's
        )


def end() -> None:
    """End the process that has been started, where nothing has asked it."""
    global _prestarted
    process, _prestarted = _prestarted, None
    if process is not None:
        process.kill()
        process.communicate()


def reload_files(orders: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Have `stages.exporters.reload` carry out its orders in the process that has been started.

    Raises:
        UserError: where a file cannot be reloaded, the process dies, or `seconds` pass.
    """
    global _prestarted
    prestart()
    process, _prestarted = _prestarted, None
    assert process is not None
    content: bytes | None = json.dumps(orders).encode()
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                printed, _ = process.communicate(content, timeout=_TICK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                content = None  # it has been taken
            safe_place()
            if time.monotonic() > until:
                raise UserError(
                    f"export: {_unanswered(orders)} was not reloaded and compared within {seconds:g} seconds",
                    "more time, fewer examples (export.compared_examples), or export.reload=here",
                    f"export.reload_seconds={2 * seconds / len(orders):g}",
                )
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        last = printed.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise UserError(
            f"export: {_unanswered(orders)} could not be reloaded without this project; the process that tried ended "
            f"with exit code {process.returncode} ({last[0][:300]})",
            "a format that supports this network, such as export=saved_model, and enough memory for a second process",
            "export.reload=here",
        )


def _unanswered(orders: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the first file that has not been reloaded."""
    return next(Path(order["path"]).name for order in orders if not Path(order["answers"]).exists())
