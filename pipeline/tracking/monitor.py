"""MLflow's measurements of the machine while a run lasts."""

from collections.abc import Mapping

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


class Monitor(SystemMetricsMonitor):
    """MLflow's monitor, with a last point at the end of the run.

    Each point measures the time until it is recorded; of MLflow 3.17 that before, so that the processor's first is 0.
    """

    def monitor(self) -> None:
        super().monitor()
        if self._shutdown_event.is_set():
            self.publish_metrics({})

    def publish_metrics(self, metrics: Mapping[str, float]) -> None:
        for part in self.monitors:
            part.clear_metrics()
        self.collect_metrics()
        super().publish_metrics(self.aggregate_metrics())

    def stop(self) -> None:
        """End without waiting for a store that may not answer."""
        self._shutdown_event.set()
