"""Use of the machine while a run works: processors, memory, disk, network and GPUs, as MLflow measures them."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pipeline.tracking.tracker import SYSTEM, Tracker

FIRST_SECONDS = 2.0
"""Seconds before the first sample."""

EVERY_SECONDS = 10.0
"""Seconds between two samples: the interval of MLflow's own clients."""

MOST_WAITING = 60
"""Samples that wait for the run's first score. MLflow's compare page begins with the metric that came first."""

END_SECONDS = 5.0
"""Limit of the wait for the last sample."""


class SystemMetrics:
    """Samples the machine in a thread, and records each sample as a step; those of a resumed run continue.

    Only the process that tracks the run samples, so of a cluster the chief's machine alone is measured.
    """

    def __init__(self, tracker: Tracker, warn: Callable[[str], None]) -> None:
        """Begins to sample for `tracker`; does nothing where that records nothing."""
        self._tracker = tracker
        self._warn = warn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="system metrics")
        if tracker.run_id is not None:
            self._thread.start()

    def stop(self) -> None:
        """Takes the last sample; none is recorded afterwards."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def _work(self) -> None:
        try:
            monitors = _monitors()
            _sample(monitors)  # use of the processors is counted from one sample to the next
            step = self._tracker.next_step(f"{SYSTEM}cpu_utilization_percentage")
            waiting: list[tuple[dict[str, float], int, int]] = []
            for wait in itertools.chain([FIRST_SECONDS], itertools.repeat(EVERY_SECONDS)):
                is_last = self._stopped.wait(wait)
                waiting.append((_sample(monitors), step, int(time.time() * 1000)))
                step += 1
                if is_last or self._tracker.has_scores or len(waiting) == MOST_WAITING:
                    for sample in waiting:
                        self._tracker.metrics(*sample)
                    waiting.clear()
                if is_last:
                    return
        except Exception as error:  # whatever a machine's counters raise, training continues
            self._warn(f"system metrics end here ({type(error).__name__}: {error})")


def _monitors() -> list[Any]:
    """Returns MLflow's monitors of this machine; that of its GPUs needs nvidia-ml-py (the extra gpu) and a driver."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(Exception):  # its library's own errors, where there is no GPU
        monitors.append(GPUMonitor())
    return monitors


def _sample(monitors: list[Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        values |= {f"{SYSTEM}{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
        monitor.clear_metrics()
    return values
