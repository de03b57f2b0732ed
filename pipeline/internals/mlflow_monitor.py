"""MLflow's undocumented monitor of the machine, extended to record a last point at the end of the run.

It is separate from `mlflow.py` because it imports MLflow.
"""

from collections.abc import Mapping
from threading import Thread

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


class Monitor(SystemMetricsMonitor):
    """MLflow's monitor, with points that cover the time up to their recording.

    MLflow 3.17 measures before it waits, so the first point of the CPU usage would be 0.
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
