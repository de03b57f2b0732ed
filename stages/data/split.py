"""A split: examples by row, their features by name, and their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stages.data.columns import Column, taken
from stages.dataset_rules import int32_labels
from stages.features.kinds import IMAGES
from stages.images import Described, describe


@dataclass(frozen=True)
class Split:
    """Examples by row: their features by name, and their targets.

    features: columns as the data set's source has them, such as unscaled images, uint8 or float32 [N, H, W, C].
    targets: int32 [N] or float32 [N, k], as the task has them; other whole numbers become int32.
    weights: of the examples in losses and metrics, float64 [N], not negative; None: all alike.
    numbers: of the examples in their source, int64 [N]; files: their paths in it, where it has one for each. None:
    unknown.
    cached: digests and moments of the features, where a cache has them.
    encoded: what the network takes, where an encoder makes it of the features; None: it takes these as they are.

    An array is held in memory; other columns are read at each use.
    """

    features: Mapping[str, Column]
    targets: np.ndarray
    weights: np.ndarray | None = None
    numbers: np.ndarray | None = None
    files: Sequence[str] | None = None
    cached: Described | None = None
    encoded: Mapping[str, Column] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", int32_labels(self.targets))

    @classmethod
    def of_images(cls, images: Column, labels: np.ndarray, **others: Any) -> Split:
        """Returns images with their classes, int [N]; `others` are further fields of the split."""
        return cls({IMAGES: images}, labels, **others)

    @property
    def images(self) -> Column:
        """The column of `of_images`."""
        return self.features[IMAGES]

    @property
    def inputs(self) -> Mapping[str, Column]:
        """The columns that the network takes."""
        return self.encoded or self.features

    @property
    def is_in_memory(self) -> bool:
        return all(isinstance(column, np.ndarray) for column in self.inputs.values())

    @cached_property
    def ends(self) -> Mapping[str, tuple[float, float]]:
        """The least and the greatest value of each feature that is in memory, nan where one is."""
        arrays = {name: column for name, column in self.features.items() if isinstance(column, np.ndarray)}
        return {name: (float(array.min()), float(array.max())) for name, array in arrays.items()}

    @cached_property
    def described(self) -> Described:
        """Digests and moments of the features; reads all of them unless a cache has these."""
        return self.cached or describe(self.features)

    def take(self, rows: np.ndarray) -> Split:
        """Returns the examples of `rows`, int64 [n]; what is read at each use still is."""

        def of(columns: Mapping[str, Column]) -> dict[str, Column]:
            return {name: taken(column, rows) for name, column in columns.items()}

        return Split(
            of(self.features),
            self.targets[rows],
            weights=self.weights[rows] if self.weights is not None else None,
            numbers=self.numbers[rows] if self.numbers is not None else None,
            files=[self.files[int(row)] for row in rows] if self.files is not None else None,
            cached=self.cached.of(rows) if self.cached is not None else None,
            encoded=of(self.encoded) if self.encoded is not None else None,
        )

    def __len__(self) -> int:
        return len(self.targets)
