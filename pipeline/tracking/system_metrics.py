"""Use of the machine while a run works, as MLflow measures it: processors, memory, disk, network and GPUs."""

import time
from collections.abc import Callable

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from pipeline.tracking.tracker import SYSTEM, Tracker

FIRST_SECONDS = 2.0
EVERY_SECONDS = 10.0
"""Seconds before the first sample, and between two others: the interval of MLflow's own clients."""

END_SECONDS = 5.0
"""Limit of the wait for the last sample."""


class SystemMetrics(SystemMetricsMonitor):
    """MLflow's monitor, whose samples go to the run's tracker: each a step, and those of a resumed run continue.

    Only the process that tracks the run samples, so of a cluster the chief's machine alone is measured.
    """

    def __init__(self, tracker: Tracker, warn: Callable[[str], None]) -> None:
        """Begin to sample for `tracker`."""
        super().__init__(tracker.run_id, tracking_uri="sqlite://")  # never asked: `monitor` is this class' own
        self._tracker = tracker
        self._warn = warn
        self.start()

    def finish(self) -> None:
        """Take the last sample; none is recorded afterwards."""
        self._shutdown_event.set()
        self._process.join(END_SECONDS)

    def monitor(self) -> None:
        """Sample until the end. MLflow's compare page begins with the metric that came first: scores come before."""
        try:
            self._sample()  # use of the processors is counted from one sample to the next
            step = 1 + max((step for name, step in self._tracker.steps() if name.startswith(SYSTEM)), default=-1)
            waiting: list[tuple[dict[str, float], int, int]] = []
            is_last = self._shutdown_event.wait(FIRST_SECONDS)
            while True:
                waiting.append((self._sample(), step + len(waiting), int(time.time() * 1000)))
                if is_last or not all(name.startswith(SYSTEM) for name, _ in self._tracker.steps()):
                    for sample in waiting:
                        self._tracker.metrics(*sample)
                    step += len(waiting)
                    waiting.clear()
                if is_last:
                    return
                is_last = self._shutdown_event.wait(EVERY_SECONDS)
        except Exception as error:  # whatever a machine's counters raise, training continues
            self._warn(f"system metrics end here ({type(error).__name__}: {error})")

    def _sample(self) -> dict[str, float]:
        self.collect_metrics()
        values = {f"{SYSTEM}{name}": float(value) for name, value in self.aggregate_metrics().items()}
        for monitor in self.monitors:
            monitor.clear_metrics()
        return values
