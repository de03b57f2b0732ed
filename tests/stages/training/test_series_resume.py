"""A training on time series that was stopped and went on is the one that nobody stopped, to the bit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stages.results import Dataset
from stages.settings.model import ByStepSettings, CausalCnnSettings, GruSettings
from tests.stages.experiments import adam, built_of, one_device
from tests.stages.series import demand, encoded
from tests.stages.training.stopped import assert_resumes_as, run
from tests.stages.training.test_sequences import prepared, recordings
from tests.stages.training.test_series_classes import encoded as encoded_classes
from tests.stages.training.test_series_classes import machines

CASES: dict[str, tuple[Callable[[Path], Dataset], Any]] = {
    "forecasts": (  # with embeddings of days
        lambda folder: encoded(folder, demand(days=2200, stores=1), stride=9, known=["promo"]),
        ByStepSettings(hidden=[8, 8], members=2, dropout=0.3),
    ),
    "classes, from the disk": (
        lambda folder: encoded_classes(folder, machines(), folder / "cache", memory_gib=0.0),
        CausalCnnSettings(filters=8, dropout=0.3),
    ),
    "recordings": (lambda folder: prepared(*recordings()), GruSettings(units=8, dropout=0.3)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    """With dropout and an adaptive optimizer, stopped within the second epoch."""
    load, network = CASES[case]
    data = load(tmp_path)
    batch = -(-len(data.train) // 5)  # five steps an epoch
    given: dict[str, Any] = {
        "build": partial(built_of, network),
        "dataset": data,
        "batch_size": batch,
        "optimizer": adam(),
        "epochs": 2,
    }
    whole, told = run(one_device(), None, **given)
    assert whole.steps == 10
    assert_resumes_as(whole, told, one_device, tmp_path / "run", (8,), **given)
