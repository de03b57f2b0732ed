"""Cost of recording in a training that goes on: tracking in a file and on a server, system metrics, checkpoints."""

import atexit
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from benchmarks.measuring import Figures, Samples, Way, interleave, timed
from benchmarks.models import built, device, images, trained_by_adam, training_loop
from benchmarks.processes import wait_for
from pipeline.config.schemas import TrackingSettings
from pipeline.system.machine import free_port
from pipeline.tracking.follower import Follower
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker
from stages.checkpoints.files import Checkpoints
from stages.checkpoints.progress import Progress
from stages.settings.model import CnnSettings
from stages.training.resume import Resumable

STEPS = 50
"""Steps between two records."""

PER_CALL = 10
"""Steps of one call of the loop."""

RECORDS_A_CALL = 5
"""Records after each call where tracking is measured: 25 in 50 steps, so that what one costs is above the noise."""

METRICS = {f"train/metric_{number}": 0.1 * number for number in range(12)}
"""As many as an epoch has."""


SAMPLE_SECONDS = 10.0
"""MLflow's own interval of system metrics, which runs have."""


class Training:
    """Trains the MNIST convnet with Adam, batch 128, on one device."""

    def __init__(self) -> None:
        self.device = device()
        self.dataset = images(7000, 28, channels=1)
        self.settings = trained_by_adam(128, steps_per_call=PER_CALL)
        self.model = built(self.dataset, self.device, CnnSettings())
        self.loop = training_loop(self.dataset, self.device, self.model, self.settings)
        self.progress = Progress()

    def go(self, after_call: Callable[[], None] = lambda: None) -> None:
        """Take STEPS steps, and call `after_call` after each call of the loop."""
        for _ in range(STEPS // PER_CALL):
            self.loop.run(self.progress.step, PER_CALL)
            self.progress.step += PER_CALL
            after_call()


def followed(spec: RunSpec) -> Tracker:
    """Begin a run whose journal a process sends, until this one ends."""
    follower = Follower(spec.settings)
    atexit.register(follower.close)
    follower.follow(spec.folder, Store(spec.settings, spec.outputs))
    tracker = Tracker(spec, print, follower.ended)
    tracker.begin({})
    return tracker


def tracking(rounds: int) -> Samples:
    """Measure 50 steps with 25 records of an epoch's metrics: untracked, in SQLite, on an `mlflow server`.

    `a record in 50 steps`: the time of training with one of these records for that without.
    """
    training = Training()

    def tracked(folder: Path, settings: TrackingSettings) -> Way:
        folder.mkdir()
        tracker = followed(RunSpec(settings, folder, folder, "benchmark", "a run"))
        steps = itertools.count(1)

        def record() -> None:
            for _ in range(RECORDS_A_CALL):
                tracker.metrics(METRICS, step=next(steps))

        return timed(lambda: training.go(record))

    with tempfile.TemporaryDirectory() as scratch, _server(Path(scratch)) as address:
        stores = {
            "off": TrackingSettings(kind="off"),
            "SQLite": TrackingSettings(kind="local"),
            "a server": TrackingSettings(kind="server", uri=address),
        }
        ways = {name: tracked(Path(scratch) / name, settings) for name, settings in stores.items()}
        samples = interleave(ways, rounds, warm_up=1)
    untracked, records = samples["off"]["seconds"], RECORDS_A_CALL * STEPS // PER_CALL
    for name in ("SQLite", "a server"):
        pairs = zip(samples[name]["seconds"], untracked, strict=True)
        samples[name]["a record in 50 steps"] = [1 + (a - b) / records / b for a, b in pairs]
    return samples


def system_metrics(rounds: int) -> Samples:
    """Measure 50 steps with and without samples of the machine, recorded a hundred times as often as in a run.

    `at the default interval`: the time of training with samples for that without.
    """
    training = Training()
    taken: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        spec = RunSpec(TrackingSettings(kind="local"), Path(folder), Path(folder), "benchmark", "a run")
        tracker = followed(spec)
        tracker.flush(seconds=60)
        uri = f"sqlite:///{folder}/mlflow.db"

        def sampled() -> Figures:
            monitor = SystemMetricsMonitor(tracker.run_id, sampling_interval=SAMPLE_SECONDS / 100, tracking_uri=uri)
            monitor.start()
            began = time.perf_counter()
            training.go()
            seconds = time.perf_counter() - began
            monitor.finish()
            taken.append(monitor._logging_step)
            return {"seconds": seconds}

        samples = interleave({"with": sampled, "without": timed(training.go)}, rounds, warm_up=1)
    pairs = zip(samples["with"]["seconds"], samples["without"]["seconds"], taken[1:], strict=True)
    costs = [(a - b) / count for a, b, count in pairs]
    samples["with"]["at the default interval"] = [1 + cost / SAMPLE_SECONDS for cost in costs]
    return samples


def checkpoints(rounds: int) -> Samples:
    """Measure 50 steps with and without a checkpoint: read while training waits, written while it goes on.

    `at the default interval`: the time of training with checkpoints for that without.
    """
    training = Training()
    optimizer = training.model.network.optimizer
    state = Resumable(training.loop.state, (), training.dataset, training.settings, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        files = Checkpoints(Path(folder), training.settings)

        def with_checkpoint() -> Figures:
            began = time.perf_counter()
            files.save(state.checkpoint(training.progress))
            waited = time.perf_counter() - began
            training.go()
            files.wait()
            return {"seconds": time.perf_counter() - began, "wait": waited}

        samples = interleave({"with": with_checkpoint, "without": timed(training.go)}, rounds, warm_up=1)
    costs = [a - b for a, b in zip(samples["with"]["seconds"], samples["without"]["seconds"], strict=True)]
    interval = training.settings.checkpoint_every_seconds
    samples["with"]["at the default interval"] = [1 + cost / interval for cost in costs]
    return samples


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Start an `mlflow server` on loopback, and yield its address."""
    port = free_port(None, 5300)
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "kept"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port, "/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
