"""Gradient boosting by different libraries. The number of trees is chosen on validation rows, as a network's epochs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

MOST_TREES = 1000
"""Maximum number of trees. Each library's other settings are its defaults."""

PATIENCE = 20
"""Number of trees without improvement on the validation rows after which no more are added."""


@dataclass(frozen=True)
class Rows:
    """Rows for boosting."""

    columns: np.ndarray
    """float64 [n, d]; categories as whole numbers; nan for missing values."""
    targets: np.ndarray
    """int [n] for classes, else float [n]."""
    weights: np.ndarray | None = None
    """The weights of the rows, [n]."""


Fit = Callable[[Rows, Rows, Sequence[bool]], Any]
"""Return a model that is fitted to the rows of the first argument, with as many trees as suit those of the second.

The third says for each column whether it is a category. Integer targets are classes.
"""


def _scikit_learn(train: Rows, val: Rows, are_categories: Sequence[bool]) -> Any:
    from sklearn import ensemble  # half a second, which no other stage need wait for

    kind = ensemble.HistGradientBoostingClassifier if _are_classes(train) else ensemble.HistGradientBoostingRegressor
    early = {"early_stopping": True, "n_iter_no_change": PATIENCE} if len(val.targets) else {"early_stopping": False}
    most = MOST_TREES if len(val.targets) else 100
    model = kind(max_iter=most, categorical_features=[*are_categories], random_state=0, **early)
    held_out = {"X_val": val.columns, "y_val": val.targets, "sample_weight_val": val.weights}
    return model.fit(train.columns, train.targets, train.weights, **(held_out if len(val.targets) else {}))


def _lightgbm(train: Rows, val: Rows, are_categories: Sequence[bool]) -> Any:
    lightgbm = import_module("lightgbm")

    kind = lightgbm.LGBMClassifier if _are_classes(train) else lightgbm.LGBMRegressor
    stop = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    held_out = {"eval_set": [(val.columns, val.targets)], "eval_sample_weight": [val.weights], "callbacks": stop}
    model = kind(n_estimators=MOST_TREES if len(val.targets) else 100, random_state=0, verbose=-1)
    places = np.flatnonzero(are_categories).tolist()
    held_out = held_out if len(val.targets) else {}
    model.fit(train.columns, train.targets, train.weights, categorical_feature=places, **held_out)
    return model


def _catboost(train: Rows, val: Rows, are_categories: Sequence[bool]) -> Any:
    catboost = import_module("catboost")

    places = np.flatnonzero(are_categories).tolist()

    def pool(rows: Rows) -> Any:
        return catboost.Pool(_objects(rows.columns, places), rows.targets, cat_features=places, weight=rows.weights)

    kind = catboost.CatBoostClassifier if _are_classes(train) else catboost.CatBoostRegressor
    model = kind(iterations=MOST_TREES, random_seed=0, verbose=False, allow_writing_files=False)
    held_out = {"eval_set": pool(val), "early_stopping_rounds": PATIENCE} if len(val.targets) else {}
    return _CatBoost(model.fit(pool(train), **held_out), places)


@dataclass(frozen=True)
class _CatBoost:
    """A fitted model of CatBoost, which does not accept categories as floats."""

    model: Any
    places: Sequence[int]

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """Return predictions, [n]."""
        return np.asarray(self.model.predict(_objects(columns, self.places)))

    def predict_proba(self, columns: np.ndarray) -> np.ndarray:
        """Return probabilities, [n, classes]."""
        return np.asarray(self.model.predict_proba(_objects(columns, self.places)))


def _objects(columns: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Return columns as objects, those at `places` as texts."""
    objects = columns.astype(object)
    for place in places:
        objects[:, place] = columns[:, place].astype(str)
    return objects


LIBRARIES: Mapping[str, tuple[str, Fit]] = {
    "sklearn": ("scikit-learn's histogram gradient boosting", _scikit_learn),
    "lightgbm": ("LightGBM", _lightgbm),
    "catboost": ("CatBoost", _catboost),
}
"""From each library's package to its name in verdicts, and its function."""


def _are_classes(rows: Rows) -> bool:
    return rows.targets.dtype.kind in "iub"
