"""A fork whose settings do not match the other run's weights is refused before anything starts."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.decide.fork import check_fork, refuse_without_epochs
from pipeline.runs.summary import Summary
from stages.errors import UserError
from tests.pipeline.experiments import experiment

OTHERS = {
    "model=mlp": "model.network._target_ was stages.networks.cnn.cnn",
    "data.split_seed=7": "data.split_seed was 42 and is now 7",
    "data=synthetic": "data._target_",
    "train=fit": "train._target_ was stages.train.train and is now stages.train.fit",
}

SAME = ("model.network.dropout=0.1", "precision=mixed_bfloat16", "optimizer=sgd", "seed=1 train.batch_size=32")


@pytest.fixture
def run(tmp_path: Path) -> Summary:
    OmegaConf.save(experiment().document, tmp_path / "config.yaml")
    fields = {entry.name: None for entry in dataclasses.fields(Summary)}
    return Summary(**{**fields, "folder": tmp_path})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", OTHERS)
def test_other_data_or_variables_are_refused(given: str, run: Summary) -> None:
    with pytest.raises(UserError, match=f"fork=1a: {OTHERS[given]}.*Try: fork=null"):
        check_fork(experiment("fork=1a", *given.split()), run)


@pytest.mark.parametrize("given", SAME)
def test_settings_that_match_the_weights_are_accepted(given: str, run: Summary) -> None:
    check_fork(experiment("fork=1a", *given.split()), run)


def test_a_fork_without_an_epoch_left_is_refused(run: Summary) -> None:
    """It starts from the epoch of the best weights or from the last epoch, and may continue with fine-tuning."""
    done = dataclasses.replace(run, metrics={"train/weights_epoch": 3.0, "train/last_epoch": 5.0})
    for given, begin in (("best", 3), ("last", 5)):
        words = ("fork=1a", f"fork_weights={given}")
        message = f"fork=1a starts after epoch {begin}.*Try: train.epochs={2 * begin}"
        with pytest.raises(UserError, match=message):
            refuse_without_epochs(experiment(*words, f"train.epochs={begin}"), done)
        refuse_without_epochs(experiment(*words, f"train.epochs={begin + 1}"), done)
        refuse_without_epochs(experiment(*words, f"train.epochs={begin}", "train.fine_tune_epochs=1"), done)
    refuse_without_epochs(experiment("fork=1a", "train.epochs=1"), dataclasses.replace(run, metrics={}))
