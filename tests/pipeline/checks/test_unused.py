"""Settings that nothing would read are refused where they were typed; the fix gives them an effect."""

import pytest

from pipeline.checks.unused import refuse_unused
from stages.errors import UserError
from tests.pipeline.experiments import experiment

UNUSED = {
    "schedule.warmup_epochs=0 schedule=plateau": "schedule=plateau does not read it, but constant, cosine, step",
    "schedule.patience=3": "schedule=constant does not read it",
    "cluster.restarts=1": "strategy=one_device has no workers",
    "strategy.cpu_replicas=2 strategy=mirrored strategy.devices=[/cpu:0]": "strategy.devices names the replicas",
    "optimizer.nesterov=true optimizer=sgd optimizer.momentum=0": "optimizer.momentum=0",
    "train.fine_tune_layers=3": "train.fine_tune_epochs=0",
    "augment.magnitude=0.5": "augment.rand_augment=0",
    "augment.rotation=0.1 pipeline.augment=null": "leaves the stage augment out",
}


@pytest.mark.parametrize("given", UNUSED)
def test_a_setting_without_effect_is_refused(given: str) -> None:
    overrides = given.split()
    with pytest.raises(UserError, match=UNUSED[given]) as caught:
        refuse_unused(experiment(*overrides), [given.partition("=")[0]])
    assert caught.value.fix


def test_a_setting_with_an_effect_is_not_refused() -> None:
    refuse_unused(experiment("schedule=cosine"), ["schedule.warmup_epochs", "schedule.final_share", "train.epochs"])
