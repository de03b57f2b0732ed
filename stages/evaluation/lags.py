"""Gradient boosting for forecasts: a row for each window and step, with the past values as columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stages.data.split import Split
from stages.evaluation.boosting import LIBRARIES, Fit, Rows
from stages.features.categories import CategoryFeature
from stages.features.kinds import HISTORY, Schema
from stages.features.windows import CalendarFeature, WindowFeature
from stages.reporter import safe_place
from stages.tasks.forecast import ForecastTargets

MOST_LAGS = 400
"""Maximum number of past values, the latest ones, of all channels."""


@dataclass(frozen=True)
class Lagged:
    """Gradient boosting on past values, with one model for all steps.

    Its columns are the past values relative to the mean of their window, the number of the step, the seasonal naive
    forecast, and what is known in advance of the step. It predicts the difference from the mean of the window.
    """

    name: str
    fit: Fit
    splits: Sequence[Split]
    """Training, validation and test."""
    features: Schema
    targets: ForecastTargets

    def forecasts(self, wanted: np.ndarray) -> np.ndarray:
        """Return forecasts of the test windows, float32 [n, steps * columns].

        Args:
            wanted: The targets of the training windows, then of the validation windows, [m, steps * columns].
        """
        count, width = len(self.splits[0]), len(self.targets.columns)
        parts = [wanted[:count], wanted[count:]]
        found = np.empty((len(self.splits[2]), self.targets.horizon, width), np.float32)
        for place in range(width):
            columns, levels, are_categories = zip(*(self._columns(split, place) for split in self.splits), strict=True)
            rows = []
            for part, matrix, level in zip(parts, columns, levels, strict=False):
                by_step = part.reshape(len(part), -1, width)[:, :, place] - level[:, np.newaxis]
                rows.append(Rows(matrix, by_step.ravel().astype(np.float64)))
            model = self.fit(rows[0], rows[1], are_categories[0])
            safe_place()
            answers = np.asarray(model.predict(columns[2])).reshape(len(found), -1)
            found[:, :, place] = answers + levels[2][:, np.newaxis]
        return found.reshape(len(found), -1)

    def _columns(self, split: Split, target: int) -> tuple[np.ndarray, np.ndarray, list[bool]]:
        """Return the rows of all windows and steps, float64 [n * steps, d]; levels, [n]; and which are categories."""
        horizon, width = self.targets.horizon, len(self.targets.columns)
        history = np.asarray(split.features[HISTORY][:], np.float64)
        count, window, _ = history.shape
        level = history[:, :, target].mean(axis=1)
        history[:, :, :width] -= history[:, :, :width].mean(axis=1, keepdims=True)
        naive = self.targets.forecasts(history).reshape(count, horizon, width)[:, :, target]
        lags = history.reshape(count, -1)[:, -MOST_LAGS:]
        by_window = [lags]
        by_step = [np.broadcast_to(np.arange(horizon, dtype=np.float64), (count, horizon)), naive]
        are_categories = [False] * lags.shape[1]
        for name, feature in self.features.items():
            if isinstance(feature, CalendarFeature):
                times = np.asarray(split.features[name][:], np.float64)[:, window:]
                by_step += [times % period for period in feature.periods]
            elif isinstance(feature, WindowFeature) and name != HISTORY:
                by_step += [*np.moveaxis(np.asarray(split.features[name][:], np.float64)[:, window:], -1, 0)]
            elif isinstance(feature, CategoryFeature):
                values = {value: float(place) for place, value in enumerate(feature.values or ())}
                codes = [values.get(value, np.nan) for value in split.features[name][:].tolist()]
                by_window.append(np.array(codes)[:, np.newaxis])
                are_categories.append(len(values) <= MOST_VALUES)
        repeated = np.repeat(np.concatenate(by_window, axis=1), horizon, axis=0)
        steps = np.stack([part.ravel() for part in by_step], axis=1)
        return np.concatenate([repeated, steps], axis=1), level, are_categories + [False] * steps.shape[1]


MOST_VALUES = 254
"""Maximum number of series that scikit-learn accepts as a category; more are numbers."""


def lagged(library: str, splits: Sequence[Split], features: Schema, targets: ForecastTargets) -> Lagged:
    """Return gradient boosting by a package, one of `LIBRARIES`, for the training, validation and test windows."""
    name, fit = LIBRARIES[library]
    return Lagged(f"{name} on past values", fit, splits, features, targets)
