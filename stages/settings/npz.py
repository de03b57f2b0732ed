"""Arrays of an `.npz` file as the columns of a table, a row for each step of each series: [N, T] or [N, T, C]."""

import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.settings.places import regular_file

if TYPE_CHECKING:
    import numpy as np

SERIES, TIME = "series", "time"
"""Columns that are made if there are no arrays of these names: the numbers of the series, and of their steps."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each array, by name."""


@dataclass(frozen=True)
class Layout:
    """The rows that arrays are, and the columns of each array."""

    series: int
    """The number of series, N."""
    steps: int
    """The number of steps of each series, T."""
    columns: Mapping[str, tuple[str, ...]]
    """The columns of each array: its name, or a name for each channel, such as `x_0`."""
    made: tuple[str, ...]
    """The columns that are made if they are needed, of SERIES and TIME."""
    by_series: frozenset[str]
    """The arrays that have one value for each series, [N]."""

    @classmethod
    def of(cls, shapes: Shapes, where: str) -> "Layout":
        """Return the layout of arrays: [N, T] or [N, T, C], and [T] or [N] next to these; or [T] alone.

        Args:
            shapes: The shapes of the arrays.
            where: The name of the file, or what returned the arrays, for messages.

        Raises:
            UserError: If the shapes do not fit each other.
        """
        expected = "arrays [N, T] or [N, T, C] with the same N and T, and arrays [T] or [N]"
        deep = {name: shape for name, shape in shapes.items() if len(shape) > 1}
        first = next(iter(deep or shapes), "")
        if not first:
            raise UserError(f"{where} has no arrays", expected)
        for name, shape in shapes.items():
            if not 1 <= len(shape) <= 3 or 0 in shape:
                raise UserError(f"{where}: {name} has the shape {shape}", expected)
        count, steps = shapes[first][:2] if deep else (1, shapes[first][0])
        by_series = set()
        for name, shape in shapes.items():
            is_shared = shape == (steps,) and (count != steps or not deep or name == TIME)
            if name not in deep and not is_shared:
                by_series.add(name)
            if shape == (count,) == (steps,) and deep and name not in (TIME, SERIES):
                problem = f"{where}: {name} has the shape {shape}, and {first} has {count} series of {steps} steps"
                raise UserError(problem, f"the shape {(count, steps)}, as {count} may be the series or the steps")
            if shape[:2] != (count, steps) if name in deep else shape not in ((steps,), (count,) if deep else ()):
                raise UserError(f"{where}: {name} has the shape {shape}, and {first} has {shapes[first]}", expected)
        columns = {
            name: tuple(f"{name}_{place}" for place in range(shape[2])) if shape[2:] > (1,) else (name,)
            for name, shape in shapes.items()
        }
        made = tuple(name for name in (SERIES, TIME) if name not in shapes and (name == TIME or deep))
        return cls(count, steps, columns, made, frozenset(by_series))

    def named(self, names: Iterable[str]) -> list[str]:
        """Return names of columns, with the columns of the arrays that are among them."""
        return [column for name in names for column in self.columns.get(name, (name,))]

    def names(self, needed: Collection[str]) -> list[str]:
        """Return the names of all columns: those that arrays are, and those that are made if they are needed."""
        return [*self.named(self.columns), *(name for name in self.made if name in needed)]

    def rows_of(self, name: str, array: "np.ndarray") -> "np.ndarray":
        """Return an array with a row for each step of each series, [N * T, C]."""
        import numpy as np  # takes a tenth of a second to import, and other data does not need it

        if array.ndim == 1:
            array = np.repeat(array, self.steps) if name in self.by_series else np.tile(array, self.series)
        return array.reshape(self.series * self.steps, -1)


def headers_in(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape of each array in an `.npz` file, and its dtype, such as `f8`, without its values.

    Raises:
        UserError: If the file cannot be read.
    """
    import numpy as np  # takes a tenth of a second to import, and other data does not need it

    found: dict[str, tuple[tuple[int, ...], str]] = {}
    try:
        with zipfile.ZipFile(regular_file(path)) as file:
            for name in file.namelist():
                with file.open(name) as array:
                    version = np.lib.format.read_magic(array)
                    is_first = version == (1, 0)
                    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
                    shape, _, dtype = read(array)
                found[name.removesuffix(".npy")] = shape, f"{dtype.kind}{dtype.itemsize}"
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({why})", "an .npz file") from error
    return found


def arrays_in(path: Path) -> "dict[str, np.ndarray]":
    """Return the arrays in an `.npz` file by name.

    Raises:
        UserError: If the file cannot be read, or has pickled objects.
    """
    import numpy as np

    try:
        with np.load(regular_file(path), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        expected = "arrays of numbers, strings or dates, without pickled objects"
        raise UserError(f"{path} cannot be read ({error})", expected) from error


def layout_in(path: Path) -> Layout:
    """Return the layout of the arrays in an `.npz` file.

    Raises:
        UserError: If the file cannot be read, or the arrays do not fit each other.
    """
    return Layout.of({name: shape for name, (shape, _) in headers_in(path).items()}, path.name)


def values_in(path: Path, column: str, most: int) -> list[object]:
    """Return values of the first rows of a column of an `.npz` file.

    Raises:
        ValueError: If it has objects, or no such column.
    """
    import numpy as np

    layout = layout_in(path)
    name = next((name for name, columns in layout.columns.items() if column in columns), column)
    with np.load(path, allow_pickle=False) as file:
        if name not in file.files:
            raise ValueError(f"{path} has no column {column}")
        array = file[name]
    return list(layout.rows_of(name, array)[:most, layout.columns[name].index(column)].tolist())


def bytes_in(path: Path) -> int:
    """Return the size of the arrays in an `.npz` file."""
    with zipfile.ZipFile(path) as file:
        return sum(one.file_size for one in file.infolist())
