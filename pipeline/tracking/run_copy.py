"""Copies of tracked runs whose folders are elsewhere: what a later run needs to begin with their results."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking.weights import one_error
from stages.errors import UserError

PREFIX = "run-"
"""Of a copy's name in the cache; the run's id follows."""

RESULTS = "results"
"""The artifact that a run recorded in a server's store has for this, and the folder of a run that it is made from."""

_PLACES: Mapping[str, str] = {
    "summary.json": "summary.json",
    "config.yaml": "config.yaml",
    "code/code.json": "code.json",
    RESULTS: RESULTS,
}
"""Artifacts, and where a run's folder has them. The summary, recorded last, comes first: what it tells of is there."""


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

    with one_error("run", uri, "run=<one of them>"):
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
            client = open_client(tracking, outputs)
            if not {RESULTS, "summary.json"} <= {artifact.path for artifact in client.list_artifacts(run_id)}:
                raise UserError(
                    f"run={uri}: the folder of its run {run_id} is not under {outputs}, nor are its results in MLflow",
                    "a run recorded with tracking=server, or the outputs that have its folder",
                    f"run={uri} outputs=<where it was made>",
                )
            made = Path(scratch, "run")
            made.mkdir()
            for artifact, place in _PLACES.items():
                Path(client.download_artifacts(run_id, artifact, scratch)).replace(made / place)
            _refuse_unfinished(made, uri)
            try:
                made.replace(copy)
            except OSError:
                if not copy.is_dir():  # else another process was faster
                    raise
    return copy


def _refuse_unfinished(made: Path, uri: str) -> None:
    status = str(json.loads((made / "summary.json").read_text()).get("status"))
    if status != "FINISHED":
        raise UserError(f"run={uri}: its run is {status} in MLflow", "a run that is FINISHED there", "")


def is_copy(folder: Path, outputs: Path) -> bool:
    """Returns whether `folder` holds such a copy."""
    return folder.resolve().parent == (outputs / "cache").resolve() and folder.name.startswith(PREFIX)
