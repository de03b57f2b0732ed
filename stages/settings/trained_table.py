"""Settings of a table that a trained model is used on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.settings.date_formats import DateFormat
from stages.settings.table import TableSettings


@dataclass(kw_only=True)
class TrainedTableSettings(TableSettings):
    """Settings of a table for a trained model, which determines the kinds of columns and the classes."""

    kinds: dict[str, str] = field(default_factory=dict)
    """The kinds of the columns in training."""
    dates: dict[str, DateFormat] = field(default_factory=dict)
    """The notation of dates in training. A mapping `date_format` may say otherwise, but the time zones are the same."""
    classes: tuple[str, ...] = ()
    """The classes in training."""

    def __post_init__(self) -> None:
        """Read dates as in training."""
        super().__post_init__()
        if self.dates:
            given: Any = self.date_format if isinstance(self.date_format, Mapping) else {}
            self.date_format = {**{column: form.pattern for column, form in self.dates.items()}, **given}
            self.time_zone = {column: form.zone for column, form in self.dates.items()}

    @property
    def declared(self) -> dict[str, str]:
        return {**super().declared, **self.kinds}

    def leaves_out(self, column: str) -> bool:
        return super().leaves_out(column) or column not in {*self.declared, *self.roles.values()}
