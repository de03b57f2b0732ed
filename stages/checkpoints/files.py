"""Checkpoint files. They are written atomically and verified when they are read; the last few are kept.

A checkpoint is one `.npz` file, which is a zip file with checksums. It contains arrays, and facts as JSON. Nothing in
it is pickled, so reading it cannot execute code.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401  # registers bfloat16 with NumPy
import numpy as np

from stages.checkpoints.names import START, checkpoint_files, checkpoint_name, step_of
from stages.errors import UserError
from stages.reporter import safe_place
from stages.settings.train import TrainSettings
from stages.storage.atomic import PARTIAL, atomic_write

_HEADER = "facts"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after a step."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values that JSON can represent."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Arrays by name."""

    @property
    def step(self) -> int:
        """Number of steps so far."""
        return int(self.facts["step"])

    @property
    def is_fork(self) -> bool:
        """Whether it belongs to another run that this training is forked from."""
        return bool(self.facts.get("fork"))

    def with_facts(self, **changes: Any) -> "Checkpoint":
        return replace(self, facts={**self.facts, **changes})

    def with_progress(self, **changes: Any) -> "Checkpoint":
        return self.with_facts(progress={**self.facts["progress"], **changes})


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Write `checkpoint` to `path` atomically: after a crash, the file is complete or absent.

    Raises:
        OSError: If it cannot be written; a partial file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda partial: np.savez(partial, allow_pickle=False, **_members(checkpoint)))


def read(source: Path | BinaryIO) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        ValueError: If it is damaged or not a checkpoint.
        OSError: If it cannot be read.
    """
    try:
        with np.load(source, allow_pickle=False) as file:
            plain = {name: file[name] for name in file.files}  # verifies their checksums
        header = json.loads(plain.pop(_HEADER).tobytes())
        arrays = {name: array.view(header["dtypes"].get(name, array.dtype)) for name, array in plain.items()}
    except OSError:
        raise
    except Exception as error:  # a flipped bit can cause any error, such as for an encrypted file or a later version
        raise ValueError(f"the file is damaged ({error})") from error
    return Checkpoint(header["facts"], arrays)


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint file."""
    file = BytesIO()
    np.savez(file, allow_pickle=False, **_members(checkpoint))
    return file.getvalue()


def from_bytes(content: bytes) -> Checkpoint:
    """Return the checkpoint in the content of a file.

    Raises:
        ValueError: If it is damaged or not a checkpoint.
    """
    return read(BytesIO(content))


def _members(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the arrays of the file. The header has the dtypes that the format cannot name, such as bfloat16."""
    dtypes = {name: array.dtype.name for name, array in checkpoint.arrays.items() if array.dtype.isbuiltin == 2}
    header = json.dumps({"facts": checkpoint.facts, "dtypes": dtypes}).encode()
    return {**checkpoint.arrays, _HEADER: np.frombuffer(header, np.uint8)}


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the last intact checkpoint in `folder`.

    Without one, this is the checkpoint that a fork starts from (`start.npz`), or None.

    Args:
        folder: The folder of the checkpoints.
        warn: Is called with a line for each damaged checkpoint, which is skipped.
    """
    start = folder / START
    for path in [*reversed(checkpoint_files(folder)), *([start] if start.is_file() else [])]:
        try:
            return read(path).with_facts(fork=path.name == START)
        except (ValueError, OSError) as error:
            warn(f"skipped the checkpoint {path.name}: {error}")
    return None


POLL_SECONDS = 0.5


class Checkpoints:
    """Writes the checkpoints of a run to `folder` in a background thread. Without a folder, none are written."""

    def __init__(self, folder: Path | None, settings: TrainSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._steps = settings.checkpoint_every_steps
        self._written_at = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        for partial in folder.glob(f"{PARTIAL}*") if folder is not None else ():
            partial.unlink()

    def steps_left(self, step: int) -> int | None:
        """Return the number of steps from `step` to the next checkpoint; None if steps do not determine it.

        All workers get the same number.
        """
        return None if self._steps is None else self._steps - step % self._steps

    def due(self, step: int) -> bool:
        """Return whether a checkpoint should be written after `step` steps.

        Raises:
            UserError: If the previous checkpoint could not be written.
        """
        if self._folder is None:
            return False
        if self._writing is not None and self._writing.done():
            self.wait()
        if self.steps_left(step) == self._steps is not None:
            return True
        return self._writing is None and time.monotonic() - self._written_at >= self._settings.checkpoint_every_seconds

    def save(self, checkpoint: Checkpoint) -> None:
        """Wait until the previous checkpoint is on disk, then start writing `checkpoint`."""
        if self._folder is None:
            return
        self.wait()
        self._writing = self._thread.submit(self._write, checkpoint, self._folder / checkpoint_name(checkpoint.step))

    def wait(self) -> None:
        """Wait until all checkpoints are on disk.

        Raises:
            UserError: If a checkpoint could not be written.
        """
        if self._writing is None:
            return
        try:
            while not futures.wait([self._writing], timeout=POLL_SECONDS).done:
                safe_place()
            self._writing.result()
        except OSError as error:
            raise UserError(
                f"a checkpoint could not be written to {self._folder} ({error.strerror or error})",
                "a writable folder with enough free space",
                "the same command again after fixing that; the run resumes from its last complete checkpoint",
            ) from error
        finally:
            self._writing = None
            self._written_at = time.monotonic()

    def _write(self, checkpoint: Checkpoint, path: Path) -> None:
        write(checkpoint, path)
        earlier = [other for other in checkpoint_files(path.parent) if step_of(other) <= checkpoint.step]
        for old in earlier[: -self._settings.checkpoints_kept]:
            old.unlink()
