"""What all tests share: one TensorFlow of four logical CPUs, one migrated MLflow store, small real data."""

import functools
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.system import environment
from tests import commands, composed

environment.prepare()
composed.remember()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` would have every command ignore it
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the laws are about logical CPU devices, whatever the machine has
os.environ.setdefault("EXPORT_RELOAD", "here")  # a fresh process would import TensorFlow for each of hundreds of runs

with environment.quiet_stderr():
    import tensorflow as tf

ROOT = Path(__file__).resolve().parent.parent
LONGEST = (
    "pipeline/cluster/test_cluster.py", "chaos/test_faults.py", "stages/distribution/test_strategies.py",
    "pipeline/sweep/test_sweep.py", "pipeline/planning/test_reuse.py", "pipeline/search/test_search.py",
    "pipeline/run/test_job.py", "pipeline/tracking/test_servers.py", "stages/training/test_training.py",
    "pipeline/command_line/test_hostile_values.py", "stages/training/test_resume.py",
    "stages/exporters/test_formats.py", "stages/transfer/test_transfer.py", "pipeline/system/test_signals.py",
    "stages/training/test_fork.py", "stages/networks/test_networks.py", "pipeline/tracking/test_tracking.py",
    "pipeline/config/test_config.py", "pipeline/run/test_disk.py", "pipeline/planning/test_resume.py",
    "stages/augmentations/test_augmented_training.py",
)  # fmt: skip
"""The files that take longest, longest first: whoever begins with them does not end alone."""
SHARED_DATA = ROOT.parent / "shared" / "data"

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
tf.config.experimental.enable_op_determinism()
tf.config.threading.set_intra_op_parallelism_threads(1)  # the operations are small; commands have as many as anywhere
commands.leave_graphs_alone()
commands.collect_garbage_rarely()


def pytest_collection_finish() -> None:
    """Leaves modules alone: the garbage collector would look through them again and again, half a second a time."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session")
def migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making one takes seconds, copying it does not."""
    from pipeline.config.schemas import TrackingSettings
    from pipeline.tracking.store import open_client

    outputs = tmp_path_factory.mktemp("store")
    open_client(TrackingSettings(kind="local"), outputs)
    return outputs / "mlflow.db"


@pytest.fixture
def outputs(tmp_path: Path, migrated_store: Path) -> Path:
    """A folder for runs, with a store in it."""
    folder = tmp_path / "outputs"
    folder.mkdir()
    shutil.copy(migrated_store, folder / "mlflow.db")
    return folder


@pytest.fixture
def pipeline_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m pipeline` from a directory that is not the project's; for options see `commands.start`."""
    return functools.partial(commands.run, cwd=tmp_path)


def shared(*parts: str) -> Path:
    """Returns the path of real data that is kept beside the project; skips the test where it is absent."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real data is not at {'/'.join(('..', 'shared', 'data', *parts))}")
    return path
