"""Use of the machine while a run works, as MLflow measures it: processors, memory, disk, network and GPUs."""

import threading
from collections.abc import Callable
from contextlib import suppress

from pipeline.tracking.tracker import SYSTEM, Tracker

EVERY_SECONDS = 10.0
"""Seconds between two samples: the interval of MLflow's own clients."""

END_SECONDS = 5.0
"""Limit of the wait for the last sample."""

Sampler = Callable[[], dict[str, float]]
"""Returns the use of the processors since its last call, and that of everything else now."""


def sampler() -> Sampler:
    """Return a sampler that measures what MLflow's monitor does."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    # It is never started, so its store is never asked; to open one of SQLite, MLflow would make all its tables.
    monitor = SystemMetricsMonitor("", tracking_uri="http://127.0.0.1")

    def sample() -> dict[str, float]:
        monitor.collect_metrics()
        values = {f"{SYSTEM}{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
        for part in monitor.monitors:
            part.clear_metrics()
        return values

    return sample


class SystemMetrics:
    """Samples for a run's tracker: each is a step, and those of a resumed run continue.

    Only the process that tracks the run samples, so of a cluster the chief's machine alone is measured.
    """

    def __init__(self, tracker: Tracker, sample: Sampler) -> None:
        """Begin to sample for `tracker`."""
        self._tracker = tracker
        self._sample = sample
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="system metrics")
        self._thread.start()

    def finish(self) -> None:
        """Take the last sample; none is recorded afterwards."""
        self._is_over.set()
        self._thread.join(END_SECONDS)

    def _work(self) -> None:
        with suppress(ConnectionError):  # the store's process has ended, as the sender says
            self._sample()
            step = 1 + max((step for name, step in self._tracker.steps() if name.startswith(SYSTEM)), default=-1)
            is_last = False
            while not is_last:
                is_last = self._is_over.wait(EVERY_SECONDS)
                self._tracker.metrics(self._sample(), step)
                step += 1
