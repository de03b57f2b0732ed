"""The comparison of a sweep's jobs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.comparison.compared_run import read_job
from pipeline.comparison.comparison import Comparison, compare_runs
from pipeline.sweep.index import is_sweep, read_index, sweep_folders
from stages.errors import UserError


def compare(folder: Path, baseline: Mapping[str, str] | None = None, columns: Sequence[str] = ()) -> Comparison:
    """Compares the jobs of the sweep in `folder`; the arguments are those of `compare_runs`.

    Raises:
        UserError: where it holds no sweep, or an argument fits no job.
    """
    if not is_sweep(folder):
        raise UserError(
            f"{folder} holds no sweep",
            "a folder under outputs/sweeps",
            "python -m pipeline -m strategy=one_device,mirrored",
        )
    _, listed = read_index(folder)
    runs = [read_job(number, folder / job["folder"], job) for number, job in enumerate(listed, 1)]
    return compare_runs(f"sweep {folder.name}", runs, baseline, columns)


def latest(outputs: Path) -> Path:
    """Returns the folder of the last sweep under `outputs`.

    Raises:
        UserError: where there is none.
    """
    folders = sweep_folders(outputs)
    if not folders:
        raise UserError(
            f"there is no sweep in {outputs / 'sweeps'}",
            "a sweep that has been run",
            "python -m pipeline -m strategy=one_device,mirrored precision=float32,mixed",
        )
    return folders[-1]
