"""Reads runs whose files may be damaged, and rebuilds damaged files from the others.

`summary.json` is rebuilt from `origin.json`, the journal and the last checkpoint; a lost journal from the other files,
once the store has shown what it has.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipeline.paths import shorter
from pipeline.run_folder.origin import Origin
from pipeline.run_folder.summary import NAME, Summary
from pipeline.tracking.journal import ENDED, Journal
from pipeline.tracking.tracker import SYSTEM
from stages.checkpoints.names import checkpoint_files

Warn = Callable[[str], None]


def read_run(folder: Path, warn: Warn = lambda line: None) -> Summary | None:
    """Returns the summary of the run in `folder`, rebuilt where the file is damaged; None where there is no run.

    Args:
        warn: called with a line for each damaged file, which says how it is handled.
    """
    origin = Origin.read(folder)
    try:
        summary = Summary.read(folder)
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        if origin is None:
            if not missing:
                warn(
                    f"{shorter(folder / NAME)} is damaged and cannot be rebuilt without origin.json: this run is "
                    "passed over. Restore one of the two files to resume it"
                )
            return None
        summary = _rebuilt(folder, origin)
        if summary.status in ENDED:  # no process works on it; a RUNNING one is written when it is resumed
            with suppress(OSError):
                summary.write(folder)
        if not missing:
            warn(f"{shorter(folder / NAME)} is damaged: rebuilt from the run's other files ({summary.status})")
    if origin is not None:
        summary = replace(summary, name=origin.name, identity=origin.identity, code=origin.code)
    return replace(summary, folder=str(folder.resolve()))  # it may have been moved


def _rebuilt(folder: Path, origin: Origin) -> Summary:
    """Returns the summary as far as the other files have it; RUNNING, to be resumed, where they have no end."""
    journal = Journal(folder)
    metrics: dict[str, float] = {}
    exported: dict[str, str] = {}
    for entry in journal.entries:
        if entry.call == "metrics":
            metrics |= {name: x for name, x in entry.arguments["values"].items() if not name.startswith(SYSTEM)}
        elif entry.call == "model":
            exported["saved_model"] = str(folder / entry.arguments["path"])
    return Summary(
        run_id=journal.run_id,
        status=journal.status or "RUNNING",
        name=origin.name,
        folder=str(folder),
        choices=origin.choices,
        overrides=list(origin.overrides),
        metrics=metrics or {name: value for row in checkpoint_rows(folder).values() for name, value in row.items()},
        identity=origin.identity,
        code=origin.code,
        exported=exported,
        versions=origin.versions,
        error="summary.json was damaged: rebuilt" if journal.status in ("FAILED", "KILLED") else None,
    )


def epoch_metrics(folder: Path) -> dict[int, dict[str, float]]:
    """Returns the metrics of each epoch, from 1, as the last checkpoint has them, or else the journal."""
    rows = checkpoint_rows(folder) or journal_rows(folder)
    return {epoch: row for epoch, row in rows.items() if epoch > 0}


def journal_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Returns the metrics by epoch, from 1, in the journal of a run; empty without one."""
    rows: dict[int, dict[str, float]] = {}
    for entry in Journal(folder).entries:
        if entry.call == "metrics" and "train/loss" in entry.arguments["values"]:
            rows.setdefault(int(entry.arguments["step"]), {}).update(entry.arguments["values"])
    return rows


def checkpoint_rows(folder: Path) -> dict[int, dict[str, float]]:
    """Returns the metrics by epoch, from 1, in the newest readable checkpoint of a run; empty without one.

    A fork does not have the epochs of the run that it started from.
    """
    import numpy as np  # for runs that have checkpoints alone

    for path in reversed(checkpoint_files(folder / "checkpoints")):
        try:
            with np.load(path, allow_pickle=False) as file:
                progress = json.loads(file["facts"].tobytes())["facts"]["progress"]
            rows = [{str(name): float(value) for name, value in row.items()} for row in progress["rows"]]
            return dict(enumerate(rows, progress["epoch"] - len(rows) + 1))
        except Exception:  # a damaged file can be anything
            continue
    return {}
