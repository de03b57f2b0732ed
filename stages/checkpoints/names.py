"""Names of checkpoint files. Imports no TensorFlow: resuming, forking and cleaning ask here before it starts."""

from pathlib import Path

START = "start.npz"
"""Name of the checkpoint that a fork starts from."""


def checkpoint_name(step: int) -> str:
    """Name of the checkpoint after `step` steps."""
    return f"step-{step:08}.npz"


def checkpoint_files(folder: Path) -> list[Path]:
    """Checkpoints of a training in `folder`, the earliest first.

    What only looks like one (`step-last.npz`, a FIFO) is no checkpoint, and is left alone.
    """
    found = (path for path in folder.glob("step-*[0-9].npz") if path.stem.removeprefix("step-").isdecimal())
    return sorted((path for path in found if path.is_file()), key=step_of)


def step_of(path: Path) -> int:
    """Step in the name of a file that `checkpoint_files` has listed."""
    return int(path.stem.removeprefix("step-"))


def can_start(folder: Path) -> bool:
    """Whether a training can start from a checkpoint in `folder`: its own, or that of the run it is forked from."""
    return bool(checkpoint_files(folder)) or (folder / START).is_file()
