"""Copies of tracked runs whose folders are elsewhere: what a later run needs to begin with their results."""

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking.weights import one_error
from stages.errors import UserError

PREFIX = "run-"
"""Of a copy's name in the cache; the run's id follows."""

RESULTS = "results"
"""The artifact that a run recorded in a server's store has for this, and the folder of a run that it is made from."""

_PLACES: Mapping[str, str] = {
    "config.yaml": "config.yaml",
    "code/code.json": "code.json",
    RESULTS: RESULTS,
    "summary.json": "summary.json",
}
"""Artifacts, and where a run's folder has them."""


def copy_of_run(run_id: str, uri: str, tracking: TrackingSettings, outputs: Path) -> Path:
    """Returns the folder of the copy in the cache, which is made where it is missing.

    Args:
        uri: of the model by which the run was named, for errors.

    Raises:
        UserError: where MLflow cannot be asked, or has no results of the run.
    """
    copy = outputs / "cache" / f"{PREFIX}{run_id}"
    if copy.is_dir():
        return copy
    from pipeline.tracking.store import open_client

    copy.parent.mkdir(parents=True, exist_ok=True)
    with one_error("run", uri, "run=<one of them>"), tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
        client = open_client(tracking, outputs)
        if RESULTS not in {artifact.path for artifact in client.list_artifacts(run_id)}:
            raise UserError(
                f"run={uri}: the folder of its run {run_id} is not under {outputs}, nor are its results in MLflow",
                "a run recorded with tracking=server, or the outputs that have its folder",
                f"run={uri} outputs=<where it was made>",
            )
        made = Path(scratch, "run")
        made.mkdir()
        for artifact, place in _PLACES.items():
            downloaded = client.download_artifacts(run_id, artifact, scratch)
            Path(downloaded).replace(made / place)
        with suppress(OSError):  # another process was faster
            made.replace(copy)
    return copy


def is_copy(folder: Path, outputs: Path) -> bool:
    """Returns whether `folder` holds such a copy."""
    return folder.resolve().parent == (outputs / "cache").resolve() and folder.name.startswith(PREFIX)
