"""Refuses a store that does not answer, or whose class is not there."""

import urllib.error
import urllib.request

from pipeline.config.experiment import Experiment
from pipeline.config.schemas import MLFLOW_RUN
from pipeline.redaction.mask import redact, without_user
from pipeline.source_code.signatures import AbsentError, find
from stages.errors import UserError

SERVER_TIMEOUT_SECONDS = 5


def server_answers(experiment: Experiment) -> None:
    """Raises UserError where the tracking server does not answer, or the class of the user's own does not exist."""
    target = experiment.tracking._target_
    try:
        find(target)
    except AbsentError as error:
        raise UserError(
            f"tracking cannot find {target}",
            "the import path of a class, its package installed or in the working directory",
            f"tracking._target_={MLFLOW_RUN}",
        ) from error
    uri = experiment.tracking.uri or ""
    if experiment.tracking.kind != "server" or experiment.dry_run or not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{without_user(uri).rstrip('/')}/health", timeout=SERVER_TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code != 404:  # it answers; whether it lets us in is for the first request to tell
            return
        raise UserError(
            f"tracking.uri={redact(uri)} is no MLflow server (it has no /health)",
            "the address of one",
            "tracking.uri=http://127.0.0.1:5000",
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"tracking.uri={redact(uri)} does not answer ({reason})",
            "a running MLflow server (mlflow server --port 5000), tracking=local, tracking=off",
            "tracking=local",
        ) from error
