"""Checkpoint files: written whole or not at all, checked when they are read, the last few kept.

A checkpoint is one `.npz` file: arrays, and facts as JSON. Nothing in it is pickled, and reading it executes nothing.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from stages.checkpoints.names import START, checkpoint_files, checkpoint_name, step_of
from stages.errors import UserError
from stages.safe_places import safe_place
from stages.settings.places import regular_file
from stages.settings.train import TrainSettings
from stages.storage.atomic import PARTIAL, atomic_write

EMA = "averages"
"""Name of the EMA among the parts of a checkpoint: that of the files that exist."""

_FACTS, _CHECKSUM = "facts", "checksum"


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after a step. facts: as JSON holds them; arrays: by name."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return int(self.facts["step"])

    @property
    def is_fork(self) -> bool:
        """Whether it is another run's, which this training is forked from."""
        return bool(self.facts.get("fork"))

    def with_facts(self, **changes: Any) -> "Checkpoint":
        return replace(self, facts={**self.facts, **changes})


def write(checkpoint: Checkpoint, path: Path) -> None:
    """Writes `checkpoint` to `path`: after a crash at any moment the file is whole or absent.

    Raises:
        OSError: where it cannot be written; a partial file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda partial: np.savez(partial, allow_pickle=False, **_members(checkpoint)))


def read(path: Path) -> Checkpoint:
    """Returns the checkpoint in a file.

    Raises:
        ValueError: where it is damaged or not a checkpoint.
        OSError: where it cannot be read.
    """
    with regular_file(path).open("rb") as file:
        return _from_file(file)


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Returns `checkpoint` as the contents of a file."""
    file = BytesIO()
    np.savez(file, allow_pickle=False, **_members(checkpoint))
    return file.getvalue()


def from_bytes(content: bytes) -> Checkpoint:
    """Returns the checkpoint that `to_bytes` has written; ValueError where it is damaged or not one."""
    return _from_file(BytesIO(content))


def _members(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Returns the arrays that make up the file."""
    plain, dtypes = {}, {}
    for name, array in checkpoint.arrays.items():
        dtypes[name] = array.dtype.name
        # NumPy's format does not have bfloat16 and the like, but can hold their bits.
        is_extension = array.dtype.isbuiltin == 2
        plain[name] = array.view(f"u{array.dtype.itemsize}") if is_extension else array
    facts = json.dumps({"facts": checkpoint.facts, "dtypes": dtypes}).encode()
    plain[_FACTS] = np.frombuffer(facts, np.uint8)
    plain[_CHECKSUM] = np.frombuffer(_digest(plain), np.uint8)
    return plain


def _from_file(opened: BinaryIO) -> Checkpoint:
    try:
        with np.load(opened, allow_pickle=False) as file:
            plain = {name: file[name] for name in file.files}
        checksum = plain.pop(_CHECKSUM).tobytes()
        is_intact = checksum == _digest(plain)
        header = json.loads(plain.pop(_FACTS).tobytes())
        arrays = {name: array.view(_dtype(header["dtypes"][name], array)) for name, array in plain.items()}
    except OSError:
        raise
    except Exception as error:  # a flipped bit can make the file anything, also encrypted or of a later version
        raise ValueError(f"it is damaged ({error})") from error
    if not is_intact:
        raise ValueError("its checksum is wrong")
    return Checkpoint(header["facts"], arrays)


def _digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def _dtype(name: str, array: np.ndarray) -> np.dtype:
    return array.dtype if array.dtype.name == name else np.dtype(tf.as_dtype(name).as_numpy_dtype)


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Returns the last intact checkpoint in `folder`, else that of the run it is forked from (`start.npz`), else None.

    Damaged ones are renamed to `damaged-…`.

    Args:
        warn: called for each damaged one.
    """
    start = folder / START
    for path in [*reversed(checkpoint_files(folder)), *([start] if start.is_file() else [])]:
        try:
            checkpoint = read(path)
            return Checkpoint({**checkpoint.facts, "fork": path.name == START}, checkpoint.arrays)
        except (ValueError, OSError) as error:
            warn(f"the checkpoint {path.name} is passed over: {error}")
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"damaged-{path.name}"))
    return None


def start_from(source: Path, folder: Path, weights: str = "last", run: str = "") -> None:
    """Copies the last intact checkpoint of `source` into `folder`, for a fork to start from.

    Args:
        weights: which of its weights the fork takes, `best` or `last`; see `stages.checkpoints.forks`.
        run: the name of the run that wrote it.

    Raises:
        UserError: where there is none, or it has no best weights yet.
    """
    checkpoint = newest(source, lambda line: None)
    if checkpoint is None:
        raise UserError(f"{source} has no whole checkpoint to start from", "a run that has one")
    if checkpoint.facts["fork"]:  # a fork that has not written a checkpoint of its own
        weights = checkpoint.facts.get("forked", {}).get("weights", weights)
    elif weights == "best" and checkpoint.facts.get("result", {}).get("restore_best", True):
        states = [callback["state"] for callback in checkpoint.facts["callbacks"] if callback["kind"] == "BestWeights"]
        if not any(state.get("weights") for state in states):
            raise UserError(
                f"fork={run} has no best weights yet: it was stopped in its first epoch",
                "fork_weights=last, which continues where it was",
                f"fork={run} fork_weights=last",
            )
    facts = {**checkpoint.facts, "forked": {"weights": weights, "run": run}}
    write(Checkpoint(facts, checkpoint.arrays), folder / START)


POLL_SECONDS = 0.5


class Checkpoints:
    """Writes the checkpoints of a run to `folder`, off the training thread, when they are due.

    Without a folder none is ever due.

    Args:
        is_secret: returns for an attribute's name and value whether a callback's is not written, but left as made.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: TrainSettings,
        is_secret: Callable[[str, object], bool] = lambda name, value: False,
    ) -> None:
        self._is_secret = is_secret
        self._folder = folder
        self._most = settings.checkpoints_kept
        self._steps = settings.checkpoint_every_steps
        self._seconds = settings.checkpoint_every_seconds
        self._written_at = time.monotonic()
        self._intervals = 0
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        for partial in folder.glob(f"{PARTIAL}*") if folder is not None else ():
            with contextlib.suppress(OSError):  # a leftover does no harm
                partial.unlink()

    def steps_left(self, step: int) -> int | None:
        """Returns how many steps after `step` the next one is due, or None; the same in every worker."""
        return None if self._steps is None else self._steps - step % self._steps

    def due(self, step: int) -> bool:
        """Returns whether one should be written after `step` steps.

        Raises:
            UserError: where the previous one could not be written.
        """
        if self._folder is None:
            return False
        if self._writing is not None and self._writing.done():
            self.wait()
        if self._steps is not None and step // self._steps > self._intervals:  # fit asks at the ends of epochs alone
            self._intervals = step // self._steps
            return True
        return self._writing is None and time.monotonic() - self._written_at >= self._seconds

    def save(self, checkpoint: Checkpoint) -> None:
        """Starts to write `checkpoint` once the previous one is on disk."""
        if self._folder is None:
            return
        self.wait()
        checkpoint = self._without_secrets(checkpoint)
        self._writing = self._thread.submit(self._write, checkpoint, self._folder / checkpoint_name(checkpoint.step))

    def wait(self) -> None:
        """Waits until all are on disk.

        Raises:
            UserError: where one could not be written.
        """
        if self._writing is None:
            return
        try:
            while not self._writing.done():
                futures.wait([self._writing], timeout=POLL_SECONDS)
                safe_place()
            self._writing.result()
        except OSError as error:
            raise UserError(
                f"a checkpoint cannot be written to {self._folder} ({error.strerror or error})",
                "a folder with room in it that can be written to",
                "the same command again, once there is: the run resumes from its last whole checkpoint",
            ) from error
        finally:
            self._writing = None
            self._written_at = time.monotonic()

    def _without_secrets(self, checkpoint: Checkpoint) -> Checkpoint:
        callbacks = [
            {
                **callback,
                "state": {key: value for key, value in callback["state"].items() if not self._is_secret(key, value)},
            }
            for callback in checkpoint.facts.get("callbacks", [])
        ]
        return Checkpoint({**checkpoint.facts, "callbacks": callbacks}, checkpoint.arrays)

    def _write(self, checkpoint: Checkpoint, path: Path) -> None:
        write(checkpoint, path)
        earlier = [other for other in checkpoint_files(path.parent) if step_of(other) <= checkpoint.step]
        for old in earlier[: -self._most]:
            old.unlink()
