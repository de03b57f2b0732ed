"""The outcome of a sweep. A process that was started by `pipeline.api` reports it there, as JSON."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.redaction import redact
from stages.errors import LONGEST, UserError

REPORT_TO = "TF_PIPELINE_REPORT_TO"
"""Environment variable with the number of the file descriptor to which a sweep reports its outcome."""


@dataclass(frozen=True)
class SweepOutcome:
    """The outcome of a sweep."""

    code: int
    """The exit code: 0, 3 if jobs failed, 130 or 143 if the sweep was stopped."""
    folder: Path | None = None
    """The folder of the sweep; None after a dry run."""
    error: str | None = None
    """The reason for not having a complete result."""


def reported(work: Callable[[], SweepOutcome]) -> int:
    """Return the exit code of a sweep, after reporting its outcome if the environment of this process asks for that.

    Args:
        work: Runs the sweep.

    Raises:
        UserError: If `work` raises it, which is reported too.
    """
    number = os.environ.pop(REPORT_TO, None)  # processes that this one starts have nothing to report
    answer: dict[str, Any] = {}
    try:
        outcome = work()
        error = outcome.error and str(redact(outcome.error))[:LONGEST]
        answer = {"code": outcome.code, "folder": outcome.folder and str(outcome.folder), "error": error}
    except UserError as error:
        answer = {"refusal": [str(redact(part)) for part in (error.problem, error.expected, error.fix)]}
        raise
    finally:
        if number is not None:
            with open(int(number), "w") as report:  # noqa: PTH123 - a descriptor
                json.dump(answer, report)
    return outcome.code


def received(report: str, code: int) -> SweepOutcome:
    """Return the outcome that a process has reported.

    Args:
        report: What it wrote; empty if it was ended before that.
        code: Its exit code.

    Raises:
        UserError: If it refused to begin.
    """
    answer = json.loads(report or "{}")
    if refusal := answer.get("refusal"):
        raise UserError(*refusal)
    if "code" not in answer:
        return SweepOutcome(code, None, f"the process of the sweep ended with exit code {code}")
    return SweepOutcome(code, Path(answer["folder"]) if answer["folder"] else None, answer["error"])
