"""Tells a store that answers slowly from one that does not answer."""

import time
import urllib.error
import urllib.request
from typing import Any

from mlflow import MlflowClient

from pipeline.config.experiment import Experiment
from pipeline.redaction.mask import redact, without_user
from stages.errors import UserError


class Pulse:
    """An MLflow client that notes when the store last answered, and the seconds that its slowest answer took."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.answered, self.slowest = time.monotonic(), 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **given: Any) -> Any:
            began = time.monotonic()
            answer = method(*args, **given)
            self.answered = time.monotonic()
            self.slowest = max(self.slowest, self.answered - began)
            return answer

        return call


SERVER_TIMEOUT_SECONDS = 5


def server_answers(experiment: Experiment) -> None:
    """Raises UserError where the tracking server does not answer."""
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
