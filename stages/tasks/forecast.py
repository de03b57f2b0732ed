"""Forecasts: the next values of time series, standardized for the network, and predicted in their own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.features.kinds import HISTORY
from stages.metrics.estimates import Columns, Sample
from stages.metrics.forecasts import ForecastMae, ForecastRmse, Mase, Pinball
from stages.metrics.metric import Metric
from stages.metrics.report import Measured, Section, blank_where_nan
from stages.plots.forecasts import plot_forecasts, plot_steps
from stages.tasks.parts import Loss, Predict, Trivial
from stages.tasks.regression import NumberHead, NumberTargets, NumberView
from stages.tasks.task import Task

if TYPE_CHECKING:
    from pathlib import Path

    import tensorflow as tf

    from stages.data.split import Split
    from stages.results import Dataset
    from stages.settings.results import EvaluateSettings

NAIVE = "naive"
"""Name of the column of seasonal naive forecasts in `predictions.parquet`."""


@dataclass(frozen=True)
class ForecastTargets(NumberTargets):
    """The next values of one or several columns, float32 [b, steps * columns], all columns of the first step first."""

    columns: tuple[str, ...] = ()
    """The names of the columns."""

    naive: tuple[float, ...] = ()
    """The mean absolute error of the seasonal naive forecast of each target in the training split, one step ahead."""

    season: int = 1
    """The number of steps after which values tend to repeat."""

    @property
    def horizon(self) -> int:
        """The number of predicted steps."""
        return len(self.names) // len(self.columns)

    @property
    def learnt(self) -> dict[str, tuple[Any, ...]]:
        """See `Targets`."""
        return {**super().learnt, "naive": self.naive}

    def task(self) -> Task:
        """See `Targets`."""
        head = ForecastHead(self)
        metrics = (ForecastMae(self.std), ForecastRmse(self.std), Mase(self.std, self.naive))
        return Task(self, AbsoluteError(head), metrics, head, ForecastView(targets=self), "Forecast", "forecast")

    def strata(self, targets: np.ndarray) -> None:
        """See `Targets`: none, as splits are cut by time."""

    def forecasts(self, history: np.ndarray) -> np.ndarray:
        """Return seasonal naive forecasts: the values of the last season, repeated, float32 [b, steps * columns].

        Args:
            history: The past of all columns, the targets first, [b, window, c].
        """
        last = history[:, -self.season :, : len(self.columns)]
        places = np.arange(self.horizon) % self.season
        return np.asarray(last[:, places].reshape(len(last), -1), np.float32)


@dataclass(frozen=True)
class ForecastHead(NumberHead):
    """One output per step and column: the standardized target."""

    targets: ForecastTargets

    def standard(self, model: Any, targets: np.ndarray) -> dict[str, np.ndarray] | None:
        """See `Head`. The model has `forecasts(targets)`, float32 [n, steps * columns]."""
        return {self.answer: model.forecasts(targets)}


@dataclass(frozen=True)
class AbsoluteError(Loss):
    """The absolute error of each example: the mean over its standardized targets.

    Rare days, such as holidays, weigh much less in it than in the squared error.
    """

    head: NumberHead

    def of_each(self, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """See `Loss`."""
        import tensorflow as tf

        return tf.reduce_mean(tf.abs(outputs - self.head.targets.standardized(targets, outputs.dtype)), axis=-1)


@dataclass(frozen=True)
class SeasonalNaive(Trivial):
    """The seasonal naive forecast, as predictions have it."""

    def rows(self, columns: Columns) -> np.ndarray:
        """See `Trivial`."""
        return np.asarray(columns[NAIVE])


@dataclass(frozen=True)
class ForecastView(NumberView):
    """Forecasts as people see them: by step, and next to the truth."""

    targets: ForecastTargets = ForecastTargets(())

    def target_columns(self, split: Split) -> dict[str, np.ndarray]:
        """See `View`; with the seasonal naive forecasts of the same windows."""
        history = np.asarray(split.features[HISTORY][:])
        return {**super().target_columns(split), NAIVE: self.targets.forecasts(history)}

    def report(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> Measured:
        """See `View`."""
        measured = Measured.of(metrics, columns, confidence)
        return replace(measured, sections=[self._by_step(metrics, columns, confidence)])

    def values(
        self, metrics: Sequence[Metric], columns: Columns, names: Sequence[str], confidence: float, bins: int
    ) -> dict[str, float]:
        """See `View`."""
        return {
            metric.name: metric.estimate(columns, Sample.of(columns).parts)[0]
            for metric in metrics
            if "quantiles" in columns or not isinstance(metric, Pinball)
        }

    def _by_step(self, metrics: Sequence[Metric], columns: Columns, confidence: float) -> Section:
        mae, rmse = ForecastMae(), ForecastRmse()
        rows: list[Sequence[object]] = []
        for place, name in enumerate(self.targets.names):
            own = {key: part[:, [place]] if part.ndim > 1 else part for key, part in columns.items()}
            ends = mae.interval(own, confidence)
            value = mae.estimate(own, Sample.of(own).parts)[0]
            naive = mae.estimate({**own, "prediction": own[NAIVE]}, Sample.of(own).parts)[0] if NAIVE in own else np.nan
            cells = [value, *((np.nan, np.nan) if isinstance(ends, str) else ends)]
            cells += [rmse.estimate(own, Sample.of(own).parts)[0], naive]
            rows.append((name, *blank_where_nan(np.array(cells))))
        note = (
            "low and high are the ends of the interval of mae, if there is one. naive mae is that of the seasonal "
            f"naive forecast (season {self.targets.season})."
        )
        header: tuple[str, ...] = ("step", "mae", "low", "high", "rmse", "naive mae")
        if "quantiles" in columns:
            inside = _inside(columns)
            header, rows = (*header, "inside"), [(*row, value) for row, value in zip(rows, inside, strict=True)]
            note += " inside is the fraction of targets between the lowest and the highest quantile."
        return Section("by_step", "Errors by step", note, [header, *rows])

    def draw(
        self, columns: Columns, dataset: Dataset, settings: EvaluateSettings, folder: Path, predict: Predict
    ) -> list[Path]:
        """See `View`: forecasts of typical and of the worst windows, and errors by step."""
        place = folder / "plots"
        errors = np.abs(columns["prediction"] - columns["target"])
        order, last = np.argsort(errors.mean(axis=1), kind="stable"), len(errors) - 1
        chosen = {"typical": order[last // 2], "worse than 90%": order[last - last // 10], "worst": order[last]}
        rows = np.array([*chosen.values()])
        history = np.asarray(dataset.test.features[HISTORY][rows])[:, :, 0]
        width = len(self.targets.columns)
        parts = [columns[name][rows][:, ::width] for name in ("target", "prediction", NAIVE)]
        band = None
        if "quantiles" in columns:
            quantiles = columns["quantiles"][rows].reshape(len(rows), len(self.targets.names), -1)[:, ::width]
            band = quantiles[..., 0], quantiles[..., -1]
        return [
            plot_forecasts([*chosen], history, parts, self.targets.columns[0], place / "forecasts.png", band),
            plot_steps(errors[:, ::width], np.abs(columns[NAIVE] - columns["target"])[:, ::width], place / "steps.png"),
        ]

    def trivial(self, task: Task, train: Split) -> SeasonalNaive:
        """Return the seasonal naive forecast."""
        count = self.targets.season
        metrics = [metric for metric in task.comparable if not isinstance(metric, Pinball)]
        name, repeats = ("seasonal naive", f"last {count} values") if count > 1 else ("naive", "last value")
        model = f"the {name} forecast (it repeats the {repeats}; the network was fitted to"
        return SeasonalNaive(model, np.zeros(len(task.names)), metrics)

    def not_beaten(self, names: Sequence[str], ours: Columns, trivial: Columns) -> list[str]:
        """Return the targets whose errors are not smaller."""
        pairs = zip(
            *(np.abs(part["prediction"] - part["target"]).mean(axis=0) for part in (ours, trivial)), strict=True
        )
        return [name for name, (our, their) in zip(names, pairs, strict=True) if our >= their]

    def explained_variance(self, columns: Columns) -> None:  # type: ignore[override]
        """See `View`: none, as forecasts are compared with naive ones."""


def _inside(columns: Columns) -> list[float]:
    """Return the fraction of each target between its lowest and its highest quantile."""
    targets = columns["target"]
    quantiles = columns["quantiles"].reshape(len(targets), targets.shape[1], -1)
    return [float(value) for value in ((quantiles[..., 0] <= targets) & (targets <= quantiles[..., -1])).mean(axis=0)]


def naive_errors(rows: np.ndarray, series: np.ndarray, season: int) -> tuple[float, ...]:
    """Return the mean absolute error of the seasonal naive forecast of each target, one step ahead.

    Args:
        rows: The targets of consecutive steps of each series, float64 [R, targets].
        series: A number for each uninterrupted series, int64 [R].
        season: The number of steps after which values tend to repeat.
    """
    same = series[season:] == series[:-season]
    errors = np.abs(rows[season:] - rows[:-season])[same]
    means = errors.mean(axis=0) if len(errors) else np.ones(rows.shape[1])
    return tuple(float(mean) if mean > 0 else 1.0 for mean in means)
