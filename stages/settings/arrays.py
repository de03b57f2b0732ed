"""Settings of arrays in an `.npz` file, whose names are looked up here."""

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import II

from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.places import regular_file
from stages.settings.ranges import choice, option

USUAL = {"train": "_train", "val": "_val", "test": "_test"}
"""Ends of the names of arrays, by splits: `x_train`, `y_train`, and `w_train` where examples have weights."""


@option("data", "arrays")
@dataclass(kw_only=True)
class ArraysSettings(DataSettings):
    """Arrays of an `.npz` file, or those that a function returns."""

    _target_: str = "stages.load.arrays.arrays"
    files: str | None = None
    """The file: `x_train`, `y_train`, and those of `val` and `test`, or `x` and `y`; or any names, with `target`."""
    target: Any = None
    """The array to predict, or a list of arrays; all others are features."""
    weight: str | None = None
    """The array that holds the weight of each example in loss and metrics."""
    features: Any = None
    """From arrays of values to kinds, as for tables; or a list of the only ones to use."""
    task: Any = II("task")
    on_error: str = choice("fail", "fail", "skip")
    """For examples that cannot be used: `fail` ends the run and names one; `skip` leaves them out and records them."""

    @property
    def path(self) -> Path:
        """The file."""
        assert self.files is not None
        return Path(self.files).expanduser()

    def parts(self, names: Iterable[str]) -> dict[str, tuple[list[str], list[str], str | None]]:
        """Returns the names of features and targets, and that of the weights, of each split.

        Raises:
            UserError: where they are not among `names`.
        """
        known = list(names)
        if self.target is not None:
            targets = [self.target] if isinstance(self.target, str) else list(self.target)
            for setting, name in [("target", target) for target in targets] + [("weight", self.weight)]:
                if name is not None and name not in known:
                    shown = ", ".join(known[:12])
                    raise UserError(f"data.{setting}={name}: {self.files} has no such array", f"one of {shown}")
            return {"train": ([name for name in known if name not in (*targets, self.weight)], targets, self.weight)}
        ends = USUAL if "x_train" in known else {"train": ""}
        found = {
            split: ([f"x{end}"], [f"y{end}"], f"w{end}" if f"w{end}" in known else None)
            for split, end in ends.items()
            if f"x{end}" in known and f"y{end}" in known
        }
        if "train" not in found:
            raise UserError(
                f"data.files={self.files} has {', '.join(known[:12]) or 'no arrays'}",
                "x_train and y_train, or x and y, or any names with data.target",
                "data.target=<one of them>",
            )
        return found

    def check(self, path: str) -> None:
        if self._target_ != ArraysSettings._target_:
            return
        if self.files is None:
            raise UserError(f"{path}.files is not set", "an .npz file", f"{path}.files=<it>")
        try:
            with zipfile.ZipFile(regular_file(self.path)) as file:
                names = [name.removesuffix(".npy") for name in file.namelist()]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{path}.files={self.files} cannot be read ({why})", "an .npz file") from error
        self.parts(names)
