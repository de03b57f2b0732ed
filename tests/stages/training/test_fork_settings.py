"""A fork has settings of its own: what goes on with them, what starts again, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.checkpoints.files import newest
from stages.checkpoints.forks import start_from
from stages.checkpoints.names import START
from stages.errors import UserError
from stages.settings.optimizer import CosineSettings, SgdSettings
from tests.stages.experiments import adam, flat, one_device
from tests.stages.training.stopped import Whole, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a training of which two epochs are over."""
    folder = tmp_path_factory.mktemp("two_epochs")
    run(one_device(), folder, 16)
    return folder / "checkpoints"


@pytest.fixture(scope="module")
def within_the_third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a training that was stopped after 20 steps, within the third epoch."""
    folder = tmp_path_factory.mktemp("within_the_third")
    run(one_device(), folder, 20, steps_per_call=4)
    return folder / "checkpoints"


def test_a_fork_takes_the_weights_and_other_settings(within_the_third: Path, tmp_path: Path) -> None:
    fork = tmp_path
    start_from(within_the_third, fork / "checkpoints")
    assert (fork / "checkpoints" / START).is_file()
    trained, told = run(one_device(), fork, optimizer=adam(), batch_size=32, epochs=5)
    assert trained is not None
    assert told.first == 2 * 16 + 1  # 20 steps of 64 are within the third epoch, which begins again
    assert list(told.rows) == [3, 4, 5]
    again, _ = run(one_device(), fork, optimizer=adam(), batch_size=32, epochs=5)  # its own checkpoints come first
    assert again is not None
    np.testing.assert_array_equal(flat(again.model.network), flat(trained.model.network))


def test_a_fork_has_its_own_learning_rate(two_epochs: Path, tmp_path: Path) -> None:
    start_from(two_epochs, tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", optimizer=SgdSettings(learning_rate=1e-4))
    assert [row["train/learning_rate"] for row in told.rows.values()] == pytest.approx([1e-4] * 3)


def test_a_fork_that_switches_the_ema_on_averages_from_the_weights_it_takes(whole: Whole, tmp_path: Path) -> None:
    start_from(whole.folder / "checkpoints", tmp_path / "b" / "checkpoints")
    source = newest(whole.folder / "checkpoints", print)
    assert source is not None
    before = source.facts["progress"]["rows"][-1]["val/accuracy"]
    _, told = run(one_device(), tmp_path / "b", epochs=5, optimizer=SgdSettings(ema_momentum=0.999, ema_use=True))
    assert told.rows[5]["val/accuracy"] >= before - 0.05


def test_a_fork_with_another_optimizer_says_what_starts_again(two_epochs: Path, tmp_path: Path) -> None:
    start_from(two_epochs, tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", optimizer=adam())
    assert told.warned == ["the optimizer starts again, and its learning-rate schedule with it"]


def test_a_fork_with_another_schedule_is_where_it_would_be_in_it(two_epochs: Path, tmp_path: Path) -> None:
    cosine: dict[str, Any] = {"schedule": CosineSettings(), "epochs": 4}
    _, whole = run(one_device(), None, early_stopping_patience=0, **cosine)
    start_from(two_epochs, tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", early_stopping_patience=0, **cosine)
    assert told.warned == []
    for epoch in (3, 4):
        assert told.rows[epoch]["train/learning_rate"] == whole.rows[epoch]["train/learning_rate"]


def test_a_fork_with_the_same_order_goes_on_within_the_epoch(within_the_third: Path, tmp_path: Path) -> None:
    start_from(within_the_third, tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b", epochs=6)
    assert trained is not None
    assert (told.first, told.resumed_from) == (20 + 1, None)


def test_a_fork_with_nothing_left_to_do_is_refused(whole: Whole, tmp_path: Path) -> None:
    start_from(whole.folder / "checkpoints", tmp_path / "b" / "checkpoints")
    with pytest.raises(UserError, match=r"train.epochs=4, and 4 are over.*Try: train.epochs=8"):
        run(one_device(), tmp_path / "b", early_stopping_patience=0)
