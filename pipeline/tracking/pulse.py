"""Tells a store that answers slowly from one that does not answer."""

import time
from typing import Any

from mlflow import MlflowClient


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
