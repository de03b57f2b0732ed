"""The baseline beside a table's result: scikit-learn's on the same rows, and what the test examples say of the two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import root_mean_squared_error

from stages.evaluation.baseline import Baseline, baseline_of
from stages.evaluation.boosting import LIBRARIES, Rows
from stages.evaluation.predictions import NAME, read_columns, write_predictions
from stages.results import Dataset
from tests.stages.experiments import table_of


def loaded(frame: pd.DataFrame, target: Any, folder: Path, features: Any = None) -> Dataset:
    return table_of(folder, frame, target=target, features=features)


def compared(data: Dataset, rows: np.ndarray, folder: Path, library: str = "sklearn") -> Baseline:
    """Return the baseline, compared with a network whose head returns `rows` for the test split."""
    write_predictions(folder / NAME, data.test, data.task, rows.astype(np.float32))
    found = baseline_of(read_columns(folder / NAME), data, 0.95, 15, library)
    assert found is not None
    return found


def columns(data: Dataset, split: str) -> np.ndarray:
    return np.stack([column[:] for column in data.splits[split].features.values()], axis=1)


def test_of_classes_it_is_that_of_scikit_learn(tmp_path: Path) -> None:
    data = loaded(datasets.load_breast_cancer(as_frame=True).frame, "target", tmp_path)
    held_out = {"X_val": columns(data, "val"), "y_val": data.val.targets}
    model = HistGradientBoostingClassifier(max_iter=1000, early_stopping=True, n_iter_no_change=20, random_state=0)
    model.fit(columns(data, "train"), data.train.targets, **held_out)
    rows = columns(data, "test")
    answers, accuracy = model.predict_proba(rows), model.score(rows, data.test.targets)
    same = compared(data, np.column_stack([answers, answers.argmax(axis=1)]), tmp_path)
    assert same.metrics["baseline/accuracy"] == pytest.approx(accuracy)
    assert (same.difference.difference, same.verdict) == (0, "no significant difference")
    wrong = 1 - np.asarray(data.test.targets)
    worse = compared(data, np.column_stack([np.eye(2)[wrong], wrong]), tmp_path)
    assert worse.difference.difference == pytest.approx(-accuracy)
    assert "the network is worse than scikit-learn's histogram gradient boosting (fitted to " in worse.sentence
    rare = replace(worse, difference=replace(worse.difference, low=np.nan, high=np.nan))
    assert "no significant difference between the network and scikit-learn" in rare.sentence
    assert not any(map(np.isnan, rare.metrics.values()))
    assert replace(worse, difference=replace(worse.difference, examples=29)).verdict == "no significant difference"


@pytest.mark.parametrize("target", ["target", ["target", "bmi"]])
def test_of_numbers_less_is_better(tmp_path: Path, target: Any) -> None:
    data = loaded(datasets.load_diabetes(as_frame=True).frame, target, tmp_path)
    wanted = np.asarray(data.test.targets, np.float64)
    exact = compared(data, wanted + 1e-3, tmp_path)
    assert exact.verdict == "beats"
    assert exact.difference.high < 0
    assert compared(data, wanted * 0 - 500, tmp_path).verdict == "is worse than"
    if target == "target":
        kinds = [feature.kind == "category" for feature in data.features.values()]
        early = {"max_iter": 1000, "early_stopping": True, "n_iter_no_change": 20}
        model = HistGradientBoostingRegressor(random_state=0, categorical_features=kinds, **early)
        held_out = {"X_val": columns(data, "val"), "y_val": np.asarray(data.val.targets)[:, 0]}
        model.fit(columns(data, "train"), data.train.targets[:, 0], **held_out)
        predicted = model.predict(columns(data, "test"))
        assert exact.values["rmse"] == pytest.approx(root_mean_squared_error(wanted[:, 0], predicted), rel=0.05)
        assert compared(data, predicted[:, None], tmp_path).verdict != "beats"


@pytest.mark.parametrize("library", ["sklearn", "lightgbm", "catboost"])
def test_every_library_finds_the_same_and_says_its_name(library: str, tmp_path: Path) -> None:
    """A class, a number and labels, with categories and missing values, and a class that only validation has."""
    pytest.importorskip(library)
    random = np.random.default_rng(0)
    shop, size = random.integers(0, 6, 900), random.normal(size=900)
    frame = pd.DataFrame({"shop": [f"s{number}" for number in shop], "size": np.where(shop, size, np.nan)})
    hot = (size + (shop > 2) > 0.5).astype(int)
    frame = frame.assign(kind=np.where(hot, "hot", "cold"), hot=hot, wet=shop % 2, price=(10 * size + shop).round(3))
    left_out = dict.fromkeys(("kind", "hot", "wet", "price"), "leave_out")
    found = {}
    for target, metric in ("kind", "accuracy"), ("price", "rmse"), (["hot", "wet"], "macro_f1"):
        names = [target] if isinstance(target, str) else target
        features = {name: kind for name, kind in left_out.items() if name not in names}
        data = loaded(frame, target, tmp_path, features=features)
        answers = np.zeros((len(data.test), data.task.head.width))
        baseline = compared(data, answers, tmp_path, library)
        found[metric] = baseline.values[metric]
        assert {"sklearn": "scikit-learn's", "lightgbm": "LightGBM", "catboost": "CatBoost"}[
            library
        ] in baseline.subject
    assert found["accuracy"] > 0.8
    assert found["macro_f1"] > 0.8
    assert found["rmse"] < 6


def test_the_number_of_trees_is_chosen_on_validation(tmp_path: Path) -> None:
    """Of noise few trees are better than many."""
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(400, 3)), random.normal(size=400))
    few = LIBRARIES["sklearn"][1](rows, Rows(rows.columns[:200], random.normal(size=200)), [False] * 3)
    many = LIBRARIES["sklearn"][1](rows, Rows(rows.columns, rows.targets), [False] * 3)
    assert few.n_iter_ < 60 < many.n_iter_


def test_of_labels_and_categories(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shop = random.integers(0, 300, 900)
    frame = pd.DataFrame({"shop": [f"s{number}" for number in shop], "size": random.normal(size=900)})
    frame = frame.assign(hot=(frame["size"] > 0).astype(int), wet=shop % 2)
    data = loaded(frame, ["hot", "wet"], tmp_path)
    targets = np.asarray(data.test.targets)
    assert compared(data, 1.0 - targets, tmp_path).verdict == "is worse than"
    better = compared(data, targets * 1.0, tmp_path)
    assert better.difference.is_better
    assert 0.4 < better.values["macro_f1"] < 1
    assert better.difference.difference == pytest.approx(1 - better.values["macro_f1"])
    assert {"macro_roc_auc", "exact_match"} <= {*better.values}


WORDS = [f"word{number}" for number in range(40)]


def texts(rows: int) -> pd.DataFrame:
    """Return texts, the last of which is empty, a number with missing values, and a category."""
    random = np.random.default_rng(1)
    chosen = random.choice(WORDS, (rows, 6))
    frame = pd.DataFrame({"review": [" ".join(row) for row in chosen], "size": random.normal(size=rows).round(2)})
    frame = frame.assign(shop=random.choice(["north", "south", "east"], rows), counts=(chosen == "word1").sum(axis=1))
    frame.loc[::7, "size"] = np.nan
    frame.loc[rows - 1, "review"] = ""
    return frame


def test_of_texts_it_is_linear_on_their_words(tmp_path: Path) -> None:
    frame = texts(900).assign(liked=lambda rows: np.where(rows.counts > 0, "yes", "no"))
    data = loaded(frame[["review", "liked"]], "liked", tmp_path, {"review": "text"})
    train, test = (data.splits[name].features["review"][:] for name in ("train", "test"))
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]+", sublinear_tf=True)
    model = LogisticRegression(max_iter=1000).fit(words.fit_transform(train), data.train.targets)
    answers = model.predict_proba(words.transform(test))
    same = compared(data, np.column_stack([answers, answers.argmax(axis=1)]), tmp_path)
    assert same.difference.difference == 0
    assert same.values["accuracy"] > 0.95
    assert (
        "no significant difference between the network and scikit-learn's linear model on the TF-IDF of"
        in same.sentence
    )


def test_of_texts_beside_columns_it_knows_both(tmp_path: Path) -> None:
    frame = texts(900)
    frame["price"] = 50 * frame.counts + 30 * (frame.shop == "north") + frame["size"].fillna(0)
    features = {"review": "text", "size": "number"}
    data = loaded(frame[["review", "size", "shop", "price"]], "price", tmp_path, features)
    exact = compared(data, np.asarray(data.test.targets) + 1e-3, tmp_path)
    assert exact.verdict == "beats"
    assert exact.values["r2"] > 0.9
    assert "TF-IDF of review and 2 other columns (fitted to" in exact.sentence
    blank = data.with_each_split(
        lambda split: replace(split, features={**split.features, "review": np.full(len(split), " ", object)})
    )
    assert "gradient boosting" in compared(blank, np.asarray(data.test.targets), tmp_path).sentence
