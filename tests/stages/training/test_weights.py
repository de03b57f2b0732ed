"""A weight counts an example that many times, whether its class or the example itself has it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stages.errors import UserError
from stages.results import Dataset, Strategy
from stages.settings.model import MlpSettings
from stages.settings.train import AutoTaskSettings, FitSettings, SgdSettings
from stages.tasks.classification import classification
from stages.train import fit, train
from tests.stages.experiments import PLACES, built_of, flat, mirrored, one_device, real_digits, settings

DIGITS = real_digits(150)
BY_CLASS = [3.0, 0.5, 0.0, 1.0, 2.0, 7.0, 1.0, 0.25, 1.0, 4.0]


def is_small(dataset: Dataset) -> Dataset:
    """Return the data set of whether a digit is below 3."""

    def of(split: Any) -> Any:
        return replace(split, targets=(split.targets < 3).astype(np.int32))

    return dataset.with_each_split(of, task=classification(("large", "small")))


def weighted(dataset: Dataset, by_class: list[float]) -> Dataset:
    train = replace(dataset.train, weights=np.array(by_class)[dataset.train.target_values])
    return replace(dataset, train=train)


def run(
    dataset: Dataset, where: Strategy, by: Any = train, policy: str = "float32", logit: bool = False, **given: Any
) -> tuple[np.ndarray, Any]:
    built = built_of(
        MlpSettings(hidden=[8]), dataset, where, policy, task=AutoTaskSettings(single_logit=True) if logit else None
    )
    usual: dict[str, Any] = {"batch_size": 40, "restore_best": False, "optimizer": SgdSettings(learning_rate=0.05)}
    told: Any = settings(**{**usual, **given})
    told = told if by is train else FitSettings(**{**vars(told), "_target_": FitSettings._target_})
    trained = by(built, dataset, where, told)
    return flat(trained.model.network).astype(np.float64), trained.history


CASES: dict[str, dict[str, Any]] = {
    "one device": {},
    "mirrored 3, in parts": {
        "where": "mirrored 3",
        "batch_size": 37,
        "optimizer": SgdSettings(learning_rate=0.05, accumulation=2),
    },
    "compiled, mixed_float16, single logit": {"jit": "on", "policy": "mixed_float16", "logit": True},
    "by Keras": {"by": fit},
}


@pytest.mark.parametrize("case", CASES)
def test_weights_of_classes_are_weights_of_their_examples(case: str) -> None:
    """In the gradient, the loss and the metrics of training; validation has the weights of its examples alone."""
    changes = dict(CASES[case])
    where, is_logit = changes.pop("where", "one device"), changes.get("logit", False)
    dataset, by_class = (is_small(DIGITS), [1.0, 5.0]) if is_logit else (DIGITS, BY_CLASS)
    by_examples, told = run(weighted(dataset, by_class), PLACES[where](), **changes)
    by_classes, other = run(dataset, PLACES[where](), class_weights=by_class, **changes)
    np.testing.assert_allclose(by_classes, by_examples, rtol=0, atol=1e-6)
    for row, other_row in zip(told, other, strict=True):
        for name in ("train/loss", "train/accuracy", "val/loss", "val/accuracy"):
            assert other_row[name] == pytest.approx(row[name], abs=1e-6), name
    if not changes:
        plain, _ = run(dataset, PLACES[where]())
        assert np.abs(plain - by_classes).max() > 1e-2


def test_a_weight_repeats_an_example_and_a_common_factor_changes_nothing() -> None:
    by_class = [1.0, 2.0, 0.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 2.0]
    rows = np.repeat(np.arange(len(DIGITS.train)), np.array(by_class, int)[DIGITS.train.target_values])
    repeated = replace(DIGITS, train=DIGITS.train.take(rows))
    weights = [1000.0 * weight for weight in by_class]
    expected, told = run(repeated, one_device(), epochs=3, batch_size=len(rows))
    found, other = run(DIGITS, one_device(), epochs=3, batch_size=150, class_weights=weights)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    for name in ("train/loss", "train/accuracy"):
        assert other[-1][name] == pytest.approx(told[-1][name], abs=1e-6)


@pytest.mark.parametrize("of_classes", [True, False])
def test_fit_refuses_weights_on_several_replicas(of_classes: bool) -> None:
    """It would take the mean of the replicas' means, whose weights have other sums."""
    dataset = DIGITS if of_classes else weighted(DIGITS, BY_CLASS)
    given: dict[str, Any] = {"class_weights": "balanced"} if of_classes else {}
    with pytest.raises(UserError, match=r"train=fit .*weights .*but 2 are used.*Try: train=loop"):
        run(dataset, mirrored(2), fit, batch_size=50, **given)
