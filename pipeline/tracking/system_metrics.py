"""Use of the machine while a run works, as MLflow measures it: processors, memory, disk, network and GPUs."""

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from pipeline.tracking.tracker import SYSTEM, Tracker

EVERY_SECONDS = 10.0
"""Seconds between two samples: the interval of MLflow's own clients."""

END_SECONDS = 5.0
"""Limit of the wait for the last sample."""


class SystemMetrics(SystemMetricsMonitor):
    """MLflow's monitor, whose samples go to the run's tracker: each a step, and those of a resumed run continue.

    Only the process that tracks the run samples, so of a cluster the chief's machine alone is measured.
    """

    def __init__(self, tracker: Tracker) -> None:
        """Begin to sample for `tracker`."""
        super().__init__(tracker.run_id, tracking_uri="sqlite://")  # never asked: `monitor` is this class' own
        self._tracker = tracker
        self.start()

    def finish(self) -> None:
        """Take the last sample; none is recorded afterwards."""
        self._shutdown_event.set()
        self._process.join(END_SECONDS)

    def monitor(self) -> None:
        """Sample until the end. Use of the processors is counted from one sample to the next."""
        self._sample()
        step = 1 + max((step for name, step in self._tracker.steps() if name.startswith(SYSTEM)), default=-1)
        is_last = False
        while not is_last:
            is_last = self._shutdown_event.wait(EVERY_SECONDS)
            self._tracker.metrics(self._sample(), step)
            step += 1

    def _sample(self) -> dict[str, float]:
        self.collect_metrics()
        values = {f"{SYSTEM}{name}": float(value) for name, value in self.aggregate_metrics().items()}
        for monitor in self.monitors:
            monitor.clear_metrics()
        return values
