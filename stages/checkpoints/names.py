"""Names of checkpoint files and of their parts.

This module does not import TensorFlow, because commands use it before a run starts.
"""

from pathlib import Path

START = "start.npz"
"""Name of the checkpoint that a fork starts from."""

MODEL, SLOTS, STEPS, SEEDS, RATE, LOSS_SCALE, AVERAGES, SUMS = (
    "model", "optimizer", "steps", "seeds", "rate", "loss scale", "averages", "sums"
)  # fmt: skip
"""Names of the parts of a training's state in a checkpoint. They must not change, because existing files have them."""


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"step-{step:08}.npz"


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints of a training in `folder`, the earliest first.

    Other files with a similar name, such as `step-last.npz` or a FIFO, are ignored.
    """
    paths = (path for path in folder.glob("step-*[0-9].npz") if path.stem.removeprefix("step-").isdecimal())
    return sorted((path for path in paths if path.is_file()), key=step_of)


def step_of(path: Path) -> int:
    """Return the step in the name of a file from `checkpoint_files`."""
    return int(path.stem.removeprefix("step-"))


def can_start(folder: Path) -> bool:
    """Return whether `folder` has a checkpoint to start from: one of the training, or the start of a fork."""
    return bool(checkpoint_files(folder)) or (folder / START).is_file()
