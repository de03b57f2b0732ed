"""Steps have the same batches, of images in memory and of others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.cases import flat
from stages.augment import augment
from stages.data import batches
from stages.data.split import Split
from stages.evaluation.eval_step import Scorer
from stages.results import Strategy
from stages.settings.data import AugmentSettings
from tests.stages.experiments import mirrored, one_device, real_digits, settings, small_cnn, start, streamed

pytestmark = pytest.mark.slow

CHANGES = {
    "in one order": AugmentSettings(),
    "mixed": AugmentSettings(mixup=0.4, cutmix=1.0),
    "augmented in the step": AugmentSettings(rotation=0.2, where="model"),
}


@pytest.mark.parametrize(("replicas", "changes"), [(1, "in one order"), (1, "augmented in the step"), (2, "mixed")])
def test_training_takes_the_same_steps_wherever_its_images_are(replicas: int, changes: str) -> None:
    """Over the ends of epochs, whose last batches have five examples, and from a step within an epoch."""
    where = one_device() if replicas == 1 else mirrored(replicas)
    held = replace(augment(real_digits(53), CHANGES[changes]), is_shuffled=changes != "in one order")
    trained = []
    for dataset in (held, streamed(held)):
        model = small_cnn(dataset, where)
        loop = start(where, model, dataset, settings(batch_size=16, epochs=9), first_step=6)
        for first, steps in ((6, 1), (7, 7), (14, 3)):
            means = loop.run(first, steps)
        assert loop.step.sums.totals.read()["examples"] == 16 + 5 + 2 * 53 + 16
        trained.append((flat(model.network), means["loss"]))
    np.testing.assert_allclose(trained[0][0], trained[1][0], atol=2e-7)
    assert trained[0][1] == pytest.approx(trained[1][1], abs=1e-6)


class _StoppedError(Exception):
    pass


def stop() -> None:
    raise _StoppedError


@pytest.mark.parametrize(
    ("make", "is_held"),
    [pytest.param(one_device, True, marks=pytest.mark.smoke), (one_device, False), (mirrored, True)],
)
def test_a_pass_begins_at_the_first_example_and_builds_nothing_anew(
    make: Callable[[], Strategy], is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a whole pass, and after one that was stopped within it; the last batch has one example."""
    built: list[tuple[Any, ...]] = []
    passes = batches.passes

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return passes(*arguments)

    monkeypatch.setattr("stages.evaluation.eval_step.passes", counted)
    dataset, where = real_digits(64), make()
    split = Split.of_images(dataset.val.images[:97], dataset.val.targets[:97])
    dataset = replace(dataset, val=split)
    scorer = Scorer(where, small_cnn(dataset, where))
    expected = scorer.score(split, 97)
    built.clear()
    scored = split if is_held else streamed(dataset).val
    for _ in range(3):
        scores = scorer.score(scored, 32)
        assert scores.loss == pytest.approx(expected.loss, abs=1e-6)
        assert scores.metrics == expected.metrics
    assert len(built) == 1
    with monkeypatch.context() as patched:
        patched.setattr("stages.evaluation.eval_step.safe_place", stop)
        with pytest.raises(_StoppedError):
            scorer.score(scored, 32)
    assert (scorer.score(scored, 32).metrics, len(built)) == (expected.metrics, 1)
