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


def record_use(tracker: Tracker, sample: Sampler) -> Callable[[], None]:
    """Begin to sample for a run; return what takes the last sample, after which none is recorded.

    Each sample is a step, and those of a resumed run continue. Only the process that tracks the run samples, so of a
    cluster the chief's machine alone is measured.
    """
    is_over = threading.Event()

    def work() -> None:
        with suppress(ConnectionError):  # the store's process has ended, as the sender says
            sample()
            step = 1 + max((step for name, step in tracker.steps() if name.startswith(SYSTEM)), default=-1)
            is_last = False
            while not is_last:
                is_last = is_over.wait(EVERY_SECONDS)
                tracker.metrics(sample(), step)
                step += 1

    def finish() -> None:
        is_over.set()
        thread.join(END_SECONDS)

    thread = threading.Thread(target=work, daemon=True, name="system metrics")
    thread.start()
    return finish
