"""What all tests share: one TensorFlow of four logical CPUs, one migrated MLflow store, small real data."""

import fcntl
import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.system import environment
from tests import commands, composed

composed.remember()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` would have every command ignore it
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the laws are about logical CPU devices, whatever the machine has
os.environ.setdefault("OMP_NUM_THREADS", "1")  # scikit-learn is as fast on small tables, and leaves the core to others
os.environ.setdefault("EXPORT_RELOAD", "here")  # a fresh process would import TensorFlow for each of hundreds of runs

MEMORY = Path("/dev/shm")
"""Linux' files in memory, where `fsync` does not wait for a disk; no test cuts the power."""

if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

ROOT = Path(__file__).resolve().parent.parent
LONGEST = (
    "pipeline/launch/test_cluster.py", "stages/distribution/test_strategies.py", "pipeline/sweep/test_sweep.py",
    "test_gallery.py", "pipeline/execute/test_tables.py", "stages/training/test_training.py",
    "pipeline/search/test_search.py", "pipeline/test_api.py", "chaos/test_faults.py", "stages/training/test_resume.py",
    "stages/training/test_series.py", "pipeline/execute/test_series.py", "stages/transfer/test_transfer.py",
    "pipeline/command_line/test_hostile_values.py", "stages/test_mixed.py", "test_docs.py",
    "stages/training/test_tasks.py", "pipeline/execute/test_own_task.py", "pipeline/execute/test_two_commands.py",
    "pipeline/sweep/test_queue.py", "pipeline/tracking/test_follower.py", "pipeline/execute/test_texts.py",
    "stages/exporters/test_fresh_process.py", "stages/training/test_series_resume.py", "pipeline/test_debug.py",
    "pipeline/test_tasks.py", "test_stored_runs.py", "pipeline/system/test_signals.py",
    "stages/exporters/test_formats.py", "stages/training/test_fork.py", "pipeline/decide/test_resume.py",
    "pipeline/checks/test_early_dates.py", "stages/training/test_weights.py", "stages/training/test_sequences.py",
    "stages/training/test_series_classes.py", "pipeline/tracking/test_servers.py", "pipeline/execute/test_job.py",
    "pipeline/test_advice.py", "pipeline/system/test_processes.py", "pipeline/tracking/test_lost_store.py",
    "pipeline/system/test_imports.py", "stages/data/test_batches.py", "stages/optimization/test_custom_optimizers.py",
    "pipeline/tracking/test_pending.py", "pipeline/decide/test_reuse.py", "pipeline/command_line/test_suggestions.py",
    "stages/augmentations/test_augmented_training.py", "pipeline/redaction/test_secrets.py",
    "pipeline/launch/test_rendezvous.py", "stages/networks/test_networks.py", "pipeline/runs/test_damaged_files.py",
    "test_extension.py", "test_architecture.py", "pipeline/tracking/test_tracking.py",
    "pipeline/checks/test_transfer.py", "pipeline/serving/test_serving.py", "pipeline/sweep/test_several.py",
    "stages/callbacks/test_callbacks.py", "pipeline/execute/test_disk.py", "stages/test_results.py",
)  # fmt: skip
"""The files that take longest, longest first: whoever begins with them does not end alone."""

COLLECTED = pytest.StashKey[set[str]]()
"""Ids of all tests in the files that were read."""

SHARED_DATA = ROOT.parent / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    """Start TensorFlow, before any test module is imported; what only hands tests to workers does without it."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    environment.prepare()
    with environment.quiet_stderr():
        import tensorflow as tf
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # operations are small; commands have as many as anywhere
    commands.leave_graphs_alone()
    commands.collect_garbage_rarely()
    from pipeline.tracking.follower import Follower
    from tests import following

    Follower._start = following.start_threads  # type: ignore[method-assign, assignment]


def pytest_collection_finish() -> None:
    """Leave modules alone: the garbage collector would look through them again and again, half a second a time."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note all tests before any is left out, and put the files that take longest first."""
    config.stash[COLLECTED] = {item.nodeid for item in items}
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, made by the first worker that wants it: that takes seconds, copying it does not."""
    from pipeline.config.schemas import TrackingSettings
    from pipeline.tracking.store import Store

    own = tmp_path_factory.mktemp("store")
    folder = own.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else own.parent
    store = folder / "mlflow.db"
    with (folder / "mlflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            Store(TrackingSettings(kind="local"), own).client()
            shutil.copy(own / "mlflow.db", store)
    return store


def outputs_in(folder: Path, store: Path) -> Path:
    """Make a folder for runs in `folder`, with a copy of the empty `store` in it."""
    outputs = folder / "outputs"
    outputs.mkdir()
    shutil.copy(store, outputs / "mlflow.db")
    return outputs


@pytest.fixture
def outputs(tmp_path: Path, migrated_store: Path) -> Path:
    return outputs_in(tmp_path, migrated_store)


@pytest.fixture(scope="module")
def module_outputs(tmp_path_factory: pytest.TempPathFactory, migrated_store: Path) -> Path:
    """Those that the tests of a file share."""
    return outputs_in(tmp_path_factory.mktemp("module"), migrated_store)


@pytest.fixture
def pipeline_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m pipeline` from a directory that is not the project's; for options see `commands.start`."""
    return functools.partial(commands.run, cwd=tmp_path)


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path of modules; those in it, whose names begin with `own_`, are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def shared(*parts: str) -> Path:
    """Return the path of real data that is kept next to the project; skip the test if it is absent."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real data is not at {'/'.join(('..', 'shared', 'data', *parts))}")
    return path
