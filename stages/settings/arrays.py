"""Settings of arrays from an `.npz` file or a function."""

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import II

from stages.errors import UserError
from stages.settings.data import DataSettings, refuse_missing
from stages.settings.folders import SPLITS, name_of_file
from stages.settings.places import regular_file
from stages.settings.ranges import choice, option

SERIES = "series"
"""The kind of an array with a series for each example, [N, T] or [N, T, C]."""

LONG = 4
"""Minimum number of steps for each channel of an array that is a series without being declared."""


def is_series(shape: tuple[int, ...], dtype: str, kind: str | None) -> bool:
    """Return whether an array has a series for each example: as declared, or long and not of pixels.

    Args:
        shape: The shape of the array.
        dtype: The letter of the kind of its dtype, and its size in bytes, such as `u1`.
        kind: The declared kind, if any.
    """
    is_long = len(shape) == 3 and shape[1] >= LONG * shape[2] and dtype not in ("u1", "b1")
    return kind == SERIES or (kind is None and is_long and dtype[0] in "fiu")


@option("data", "arrays")
@dataclass(kw_only=True)
class ArraysSettings(DataSettings):
    """Arrays from an `.npz` file, or from a Python function."""

    _target_: str = "stages.load.arrays.arrays"
    files: str | None = None
    """An `.npz` file. It has the arrays `x_train` and `y_train`, optionally the weights `w_train`, and the same for
    `val` and `test`; or `x`, `y` and optionally `w`; or arrays of any names, if `target` is set."""
    target: Any = None
    """Name of the array to predict, or a list of names. All other arrays are features."""
    weight: str | None = None
    """Name of the array with the weight of each example in the loss and the metrics."""
    features: Any = None
    """A mapping from arrays of values to kinds, as for tables, or a list of the only arrays to use. The kind `series`
    is an array [N, T] or [N, T, C] of series with T steps each."""
    task: Any = II("task")
    on_error: str = choice("fail", "fail", "skip")
    """Handling of examples that cannot be used. `fail`: end the run with an error that names the first one. `skip`:
    leave them out, and list them in `data/skipped.csv`."""

    @property
    def source(self) -> str:
        return name_of_file(self.path) if self.files is not None else ""

    @property
    def path(self) -> Path:
        """The file."""
        assert self.files is not None
        return Path(self.files).expanduser()

    def parts(self, names: Iterable[str]) -> dict[str, tuple[list[str], list[str], str | None]]:
        """Return the names of the features, the targets and the weights of each split.

        Args:
            names: The names of the arrays in the file.

        Raises:
            UserError: If an array is missing.
        """
        known = list(names)
        if self.target is not None:
            targets = [self.target] if isinstance(self.target, str) else list(self.target)
            for setting, names in {"target": targets, "weight": [self.weight] if self.weight else []}.items():
                refuse_missing(f"data.{setting}", names, known, self.files)
            return {"train": ([name for name in known if name not in (*targets, self.weight)], targets, self.weight)}
        ends = {f"_{name}": split for name, split in SPLITS.items()} if "x_train" in known else {"": "train"}
        parts: dict[str, tuple[list[str], list[str], str | None]] = {}
        for end, split in ends.items():
            if f"x{end}" in known and f"y{end}" in known and split not in parts:
                weight = f"{(self.weight or 'w').removesuffix('_train')}{end}" if end else self.weight or "w"
                refuse_missing("data.weight", [weight] if self.weight else [], known, self.files)
                parts[split] = [f"x{end}"], [f"y{end}"], weight if weight in known else None
        if "train" not in parts:
            names = ", ".join(known[:12])
            raise UserError(
                f"data.files={self.files} has {f'the arrays {names}' if names else 'no arrays'}",
                "x_train and y_train, or x and y, or the name of an array in data.target",
                "data.target=<array>",
            )
        return parts

    def check(self, path: str) -> None:
        if self._target_ != ArraysSettings._target_:
            return
        if self.files is None:
            raise UserError(f"{path}.files is not set", "an .npz file", f"{path}.files=<file>")
        try:
            with zipfile.ZipFile(regular_file(self.path)) as file:
                names = [name.removesuffix(".npy") for name in file.namelist()]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{path}.files={self.files} cannot be read ({why})", "an .npz file") from error
        self.parts(names)
