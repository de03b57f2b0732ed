"""MLflow's monitor of the machine, which its documentation does not describe, with a last point at the end of the run.

Separate from `mlflow.py`, as it imports MLflow.
"""

from collections.abc import Mapping
from threading import Thread

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


class Monitor(SystemMetricsMonitor):
    """MLflow's monitor. Each point measures the time until it is recorded.

    MLflow 3.17 measures before it waits, so the first point of the processor's usage would be 0.
    """

    _is_ending = False

    def monitor(self) -> None:
        super().monitor()
        if self._is_ending:
            self.publish_metrics({})

    def publish_metrics(self, metrics: Mapping[str, float]) -> None:
        for part in self.monitors:
            part.clear_metrics()
        self.collect_metrics()
        super().publish_metrics(self.aggregate_metrics())

    def finish(self) -> None:
        """Record a last point, and end."""
        self._is_ending = True
        super().finish()

    def stop(self) -> None:
        """End without waiting for the store, which may not respond."""
        Thread(target=self.finish, daemon=True).start()
