"""Vectors: numbers that belong together, such as measurements [d] or the features of a backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from stages.data.columns import Column
from stages.features.kinds import Encoded, Feature, means_of
from stages.features.numbers import (
    Moments,
    describe_numbers,
    moments_of,
    refuse_overflow,
    standardized,
    values_for_statistics,
)

if TYPE_CHECKING:
    from stages.data.split import Split
    from stages.settings.data import NormalizeSettings


@dataclass(frozen=True)
class VectorFeature(Feature):
    """Numbers of a shape, usually [d]; nan if one is missing."""

    kind: ClassVar[str] = "vector"

    shape: tuple[int, ...] = (0,)
    dtype: str = "float64"
    elements: tuple[Moments, ...] | None = None
    """The statistics of each element."""

    def learn(self, name: str, column: Column, settings: NormalizeSettings) -> Self:
        elements = tuple(moments_of(column))
        refuse_overflow(self.column_name(name), elements)
        return replace(self, elements=elements)

    def encode(self, values: Any) -> Encoded:
        assert self.elements is not None
        return Encoded(standardized(values, self.elements))

    def measured(self, column: Column) -> np.ndarray:
        return means_of(column)

    def statistics(self, name: str, split: Split) -> list[Sequence[Any]]:
        values = values_for_statistics(split, name)
        return [self._row(name, float(np.isnan(values).mean()), *describe_numbers(values), "", "")]

    @property
    def known(self) -> dict[str, Any]:
        return {} if self.elements is None else {"elements": [asdict(element) for element in self.elements]}

    @classmethod
    def of_json(cls, values: Mapping[str, Any], **common: Any) -> Self:
        elements = tuple(Moments(**element) for element in values["elements"]) if "elements" in values else None
        return cls(tuple(values.get("shape", (0,))), values.get("dtype", "float64"), elements, **common)
