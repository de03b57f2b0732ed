"""Baselines: a trivial answer, and for tables and texts a standard model of scikit-learn on the same split and columns.

The trivial answer is the mean of the targets, or the majority of the classes or of each label. The standard model is
gradient boosting; if some columns are texts, a linear model on their TF-IDF and all other columns.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from stages.data.columns import evenly_spread
from stages.data.split import Split
from stages.evaluation.boosting import LIBRARIES, Fit, Rows
from stages.evaluation.lags import Lagged, lagged
from stages.evaluation.paired_tests import MetricDifference, metric_difference
from stages.evaluation.standard_columns import are_categories, encoded_columns
from stages.features.kinds import Schema
from stages.features.texts import TextFeature
from stages.metrics.estimates import Columns
from stages.metrics.metric import Metric
from stages.metrics.report import some
from stages.reporter import safe_place
from stages.results import Dataset
from stages.tasks.forecast import ForecastTargets

SKLEARN = "sklearn"

MOST_ROWS = 100_000
"""Maximum number of training rows for the standard model. Of more, evenly spread ones are used."""

MOST_COLUMNS = 500
"""Maximum number of columns for the standard model, which would take too long with more."""

WORD = r"\w+|[^\w\s]+"
"""Tokens of texts: words, and punctuation between them, so only blank texts yield no tokens."""

LEAST = 30
"""Minimum number of test examples for a verdict."""

LEAST_FOR_LOSS = 100
"""Minimum number of test examples for a verdict by a further metric, which depends on rare mistakes."""

MOST_ITERATIONS = 1000
"""Maximum number of iterations for a linear model."""


@dataclass(frozen=True)
class Baseline:
    """A model that a network is compared with."""

    model: str
    """The model in words."""
    values: Mapping[str, float]
    """The metrics of the model by name."""
    difference: MetricDifference
    """The primary metric of the network minus that of the model."""
    rows: int
    """The number of training examples that the model was fitted to."""
    further: Sequence[MetricDifference] = ()
    """The same for more metrics, if the primary one can hardly tell models apart."""

    prefix: ClassVar[str] = "baseline"
    unclear: ClassVar[str] = "no significant difference"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to record, by their full names."""
        values = dict(self.values)
        for part in (self.difference, *self.further):
            values |= part.metrics(part.metric)
        return {f"{self.prefix}/{name}": value for name, value in values.items()}

    @property
    def verdict(self) -> str:
        """A verb that says whether the network is better on the test examples, or `no significant difference`."""
        return self._verdict(self.difference, LEAST)

    def _verdict(self, part: MetricDifference, least: int) -> str:
        has_no_interval = math.isnan(part.low) and part.difference != 0
        if part.examples < least or has_no_interval:
            return "no significant difference"
        if not part.excludes_zero:
            return self.unclear
        return "beats" if part.is_better else "is worse than"

    @property
    def subject(self) -> str:
        """The model that the network is compared with."""
        return f"{self.model} (fitted to {self.rows:,} training rows)"

    @property
    def sentence(self) -> str:
        """The verdict, with the difference and its interval."""
        said = f"{_clause(self.verdict, 'the network', self.subject)}: {self._scores(self.difference)}"
        for part in self.further:
            verdict = _clause(self._verdict(part, LEAST_FOR_LOSS), "it", "this baseline")
            said += f"; by {part.metric}, {verdict}: {self._scores(part)}"
        return f"{said} on {self.difference.examples:,} test examples"

    def _scores(self, part: MetricDifference) -> str:
        theirs = self.values[part.metric]
        return f"{part.metric} {theirs + part.difference:.4g} vs {theirs:.4g}, {part.change}"


@dataclass(frozen=True)
class Trivial(Baseline):
    """The same prediction for every example: the mean of the targets, or the majority.

    `model` ends in an open bracket, which the number of training examples closes.
    """

    r2: float | None = None
    """The R² of a network that predicts numbers. If it is at most 0, the network does not beat the mean."""
    no_better: Sequence[str] = ()
    """The targets whose R² is at most 0, or the labels whose log loss is not lower, if there are several."""

    prefix: ClassVar[str] = "trivial"
    unclear: ClassVar[str] = "does not beat"

    @property
    def verdict(self) -> str:
        """See `Baseline`."""
        found = super().verdict
        return found if found == "is worse than" or self.r2 is None or self.r2 > 0 else self.unclear

    @property
    def subject(self) -> str:
        """See `Baseline`."""
        return f"{self.model} {self.rows:,} training examples)"

    @property
    def sentence(self) -> str:
        """See `Baseline`."""
        r2 = f"; the network's R² is {self.r2:.3g}" if self.r2 is not None and self.r2 <= 0 else ""
        names = f"; it does not beat the baseline for {some(self.no_better)}" if self.no_better else ""
        return super().sentence + r2 + names


def _clause(verdict: str, ours: str, theirs: str) -> str:
    """Return a verdict as a clause about two models."""
    if verdict == Baseline.unclear:
        return f"{verdict} between {ours} and {theirs}"
    return f"{ours} {verdict} {theirs}"


def trivial_of(predicted: Columns, dataset: Dataset, confidence: float) -> Trivial | None:
    """Return the trivial baseline, compared with a network's predictions in pairs, example by example.

    Numbers are predicted by their mean, classes and labels by the majority, with their frequencies as probabilities.
    Means and frequencies are those of the training split, by the weights of its examples.

    Args:
        predicted: The columns of a file of predictions, for all test examples.
        dataset: The data set, with the task of the network.
        confidence: The level of the interval.
    """
    task, train = dataset.task, dataset.train
    trivial = task.view.trivial(task, train)
    if trivial is None:
        return None
    column = task.view.column
    known = {name: predicted[name] for name in ("weight", "group", column) if name in predicted}
    theirs = {**known, **task.head.columns(trivial.rows(predicted))}
    further = _differences(trivial.further, theirs, predicted, confidence)
    values = {metric.name: _value(metric, theirs) for metric in (*trivial.metrics, *further)}
    difference = _difference(task.comparable[0], theirs, predicted, confidence)
    r2 = task.view.explained_variance(predicted)
    not_beaten = task.view.not_beaten(task.names, predicted, theirs) if len(task.names) > 1 else []
    return Trivial(trivial.model, values, difference, len(train), [*further.values()], r2, not_beaten)


def _value(metric: Metric, columns: Columns) -> float:
    return float(metric.by_example(columns).mean())


def _differences(
    metrics: Sequence[Metric], theirs: Columns, ours: Columns, confidence: float
) -> dict[Metric, MetricDifference]:
    """Return the differences in those metrics that are defined: a class may have too few test examples for one."""
    found = {metric: _difference(metric, theirs, ours, confidence) for metric in metrics}
    return {metric: part for metric, part in found.items() if not math.isnan(part.difference)}


def _difference(metric: Metric, theirs: Columns, ours: Columns, confidence: float) -> MetricDifference:
    first, second = (metric.by_example(each)[np.newaxis] for each in (theirs, ours))
    found = metric_difference(first, second, True, level=confidence, metric=metric)
    return replace(found, examples=len(next(iter(ours.values()))))  # not of groups


def baseline_of(
    predicted: Columns, dataset: Dataset, confidence: float, bins: int, library: str = SKLEARN
) -> Baseline | None:
    """Return the baseline, compared with a network's predictions; None if it supports no column.

    It uses the training and the validation split as the network does: it is fitted to one, and the number of trees is
    chosen on the other. The metrics are compared in pairs, example by example.

    Args:
        predicted: The columns of a file of predictions, for all test examples.
        dataset: The data set, with the task of the network.
        confidence: The level of the interval.
        bins: The number of bins of the calibration error.
        library: The package for gradient boosting, one of `LIBRARIES`.
    """
    steps = dataset.task.targets.horizon if isinstance(dataset.task.targets, ForecastTargets) else 1
    train, val = (split.take(evenly_spread(len(split), MOST_ROWS // steps)) for split in (dataset.train, dataset.val))
    test = dataset.test
    columns = {
        name: feature
        for name, feature in dataset.features.items()
        if feature.is_encodable
        and (not isinstance(feature, TextFeature) or any(text.strip() for text in train.features[name][:]))
    }
    task = dataset.task
    texts = [name for name, feature in columns.items() if isinstance(feature, TextFeature)]
    fit: Standard | Lagged
    if isinstance(task.targets, ForecastTargets):
        fit = lagged(library, (train, val, test), columns, task.targets)
    elif not columns or len(are_categories(columns)) > MOST_COLUMNS:
        return None
    else:
        fit = _linear(train, test, columns) if texts else _boosting(library, train, val, test, columns)
    known = {name: column for name, column in predicted.items() if name in ("weight", "group", task.view.column)}
    fitted_to = [train] if texts else [train, val]
    standard = task.head.standard(fit, np.concatenate([split.target_values for split in fitted_to]))
    if standard is None:
        return None
    theirs = {**known, **standard}
    values = task.view.values(task.comparable, theirs, task.names, confidence, bins)
    further = _differences(task.view.further(task.names, dataset.train), theirs, predicted, confidence)
    values = {**values, **{metric.name: _value(metric, theirs) for metric in further}}
    difference = _difference(task.comparable[0], theirs, predicted, confidence)
    return Baseline(fit.name, values, difference, len(train), [*further.values()])


class Standard(Protocol):
    """A standard model, which is fitted when predictions for the test rows are needed."""

    @property
    def name(self) -> str:
        """The model in words."""

    def probabilities(self, targets: np.ndarray, classes: int) -> np.ndarray:
        """Return the probabilities of the classes for the test rows, float32 [n, classes].

        Args:
            targets: The targets of the rows that the model is fitted to, int [m].
            classes: The number of classes.
        """

    def numbers(self, targets: np.ndarray) -> np.ndarray:
        """Return predictions for the test rows, float64 [n].

        Args:
            targets: The targets of the rows that the model is fitted to, float [m].
        """


@dataclass(frozen=True)
class _Boosted:
    """Gradient boosting: see `Standard`. Targets are those of the training rows, then those of the validation rows."""

    name: str
    fit: Fit
    splits: Sequence[Split]
    """Training and validation."""
    columns: Sequence[np.ndarray]
    """The columns of both, and those of the test rows, [n, d]."""
    are_categories: Sequence[bool]

    def probabilities(self, targets: np.ndarray, classes: int) -> np.ndarray:
        found = np.zeros((len(self.columns[2]), classes), np.float32)
        present = np.unique(targets[: len(self.columns[0])])
        if len(present) == 1:
            found[:, present[0]] = 1
            return found
        known = np.isin(targets, present)
        found[:, present] = self._fitted(np.searchsorted(present, targets), known).predict_proba(self.columns[2])
        return found

    def numbers(self, targets: np.ndarray) -> np.ndarray:
        fitted = self._fitted(np.asarray(targets, np.float64), np.ones(len(targets), bool))
        return np.asarray(fitted.predict(self.columns[2]), np.float64)

    def _fitted(self, targets: np.ndarray, known: np.ndarray) -> Any:
        parts, begin = [], 0
        for split, columns in zip(self.splits, self.columns, strict=False):
            place = slice(begin, begin + len(columns))
            kept = known[place]
            parts.append(
                Rows(columns[kept], targets[place][kept], None if split.weights is None else split.weights[kept])
            )
            begin += len(columns)
        with warnings.catch_warnings(action="ignore"):  # a baseline need not converge completely
            model = self.fit(parts[0], parts[1], self.are_categories)
        safe_place()
        return model


@dataclass(frozen=True)
class _Fit:
    """Models of scikit-learn, with their training and test rows, [n, d], which are sparse if there are texts."""

    name: str
    train: Any
    test: Any
    weights: np.ndarray | None
    classifier: Callable[[], Any]
    regressor: Callable[[], Any]

    def probabilities(self, targets: np.ndarray, classes: int) -> np.ndarray:
        """See `Standard`."""
        found = np.zeros((self.test.shape[0], classes), np.float32)
        present = np.unique(targets)
        if len(present) == 1:
            found[:, present[0]] = 1
            return found
        found[:, present] = self._fitted(self.classifier(), targets).predict_proba(self.test)
        return found

    def numbers(self, targets: np.ndarray) -> np.ndarray:
        """See `Standard`."""
        found: np.ndarray = self._fitted(self.regressor(), targets).predict(self.test)
        return found

    def _fitted(self, model: Any, targets: np.ndarray) -> Any:
        with warnings.catch_warnings(action="ignore"):  # a baseline need not converge completely
            model.fit(self.train, targets, self.weights)
        safe_place()
        return model


def _boosting(library: str, train: Split, val: Split, test: Split, columns: Schema) -> _Boosted:
    """Return gradient boosting on numbers and categories."""
    name, fit = LIBRARIES[library]
    return _Boosted(name, fit, [train, val], encoded_columns([train, val, test], columns), are_categories(columns))


def _linear(train: Split, test: Split, columns: Schema) -> _Fit:
    """Return a linear model on the TF-IDF of texts, standardized numbers and categories, a column for each value."""
    from scipy import sparse
    from sklearn import compose, feature_extraction, impute, linear_model, pipeline, preprocessing

    others = {name: feature for name, feature in columns.items() if not isinstance(feature, TextFeature)}
    texts = [name for name in columns if name not in others]
    parts = []
    for name in texts:
        layer = feature_extraction.text.TfidfVectorizer(token_pattern=WORD, decode_error="replace", sublinear_tf=True)
        of_train = layer.fit_transform(train.features[name][:])
        safe_place()
        parts.append((of_train, layer.transform(test.features[name][:])))
        safe_place()
    if others:
        are = are_categories(others)
        numbers = pipeline.make_pipeline(
            impute.SimpleImputer(strategy="median", keep_empty_features=True), preprocessing.StandardScaler()
        )
        layers = compose.make_column_transformer(
            (numbers, [place for place, is_category in enumerate(are) if not is_category]),
            (preprocessing.OneHotEncoder(handle_unknown="ignore"), np.flatnonzero(are)),
        )
        fitted, asked = encoded_columns([train, test], others)
        parts.append((layers.fit_transform(fitted), layers.transform(asked)))
    beside = f" and {len(others)} other column{'s' * (len(others) > 1)}" if others else ""
    fitted, asked = (sparse.hstack(part, format="csr") for part in zip(*parts, strict=True))
    return _Fit(
        f"scikit-learn's linear model on the TF-IDF of {', '.join(texts)}{beside}",
        fitted,
        asked,
        train.weights,
        partial(linear_model.LogisticRegression, max_iter=MOST_ITERATIONS),
        linear_model.Ridge,
    )
