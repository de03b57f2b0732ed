"""Columns: the values of a feature over all rows, in memory or read at each use."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from stages.errors import UserError

ALIGNMENT = 64
"""Bytes; Eigen's, for AVX-512."""


class Column(Protocol):
    """Values [N, ...] of any dtype, by rows. A NumPy array is one; `Streamed` reads them at each use."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Returns the values of `rows`, a slice or int64 [n], as an array [n, ...]; safe in several threads at once."""


@dataclass(frozen=True)
class Streamed:
    """Values that are read at each use.

    read: from numbers of the source, int64 [n], to their values [n, ...]; safe in several threads at once.
    rows: which of the source's examples these are, int64 [N].
    example_shape: the shape of one.
    failed: errors that reading has raised, for `own_errors`.
    """

    read: Callable[[np.ndarray], np.ndarray]
    rows: np.ndarray
    example_shape: tuple[int, ...]
    dtype: Any = np.dtype(np.uint8)
    failed: list[UserError] = field(default_factory=list, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.example_shape)

    def __getitem__(self, rows: Any) -> np.ndarray:
        try:
            return self.read(self.rows[rows])
        except UserError as error:
            self.failed.append(error)
            raise


def taken(column: Column, rows: np.ndarray) -> Column:
    """Returns the values of `rows`, int64 [n], read at each use where the others are."""
    if isinstance(column, Streamed):
        return replace(column, rows=column.rows[rows])
    if isinstance(column, np.ndarray):
        return np.ascontiguousarray(column[rows])
    return Streamed(column.__getitem__, rows, column.shape[1:], column.dtype)


def evenly_spread(count: int, most: int) -> np.ndarray:
    """Returns rows, int64, from the first of `count` to the last: all of them, or `most`."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)


@contextmanager
def own_errors(columns: Iterable[Column]) -> Iterator[None]:
    """Raises the error that reading `columns` has raised, which TensorFlow buries in one of its own."""
    try:
        yield
    except Exception as error:
        for column in columns:
            if isinstance(column, Streamed) and column.failed:
                raise column.failed[0] from error
        raise
