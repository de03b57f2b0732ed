"""Settings that nothing would read are refused where they were typed; the fix gives them an effect."""

import shlex

import pytest

from pipeline.checks.combinations import refuse_unused
from pipeline.config.debug import debugged
from stages.errors import UserError
from tests.pipeline.experiments import experiment

UNUSED = {
    "cluster.restarts=1": "with cluster=local without workers",
    "strategy.cpu_replicas=2 strategy=mirrored strategy.devices=[/cpu:0]": "with strategy.devices",
    "train.fine_tune_layers=3": "train.fine_tune_epochs=0",
    "augment.magnitude=0.5": "augment.rand_augment=0",
    "train.cache_features=off train=fit model=mobilenet_v2 model.frozen=true": "with train=fit",
    "augment.where=model": "without changes of single images",
    "augment.where=input augment.mixup=0.2": "without changes of single images",
}


@pytest.mark.slow
@pytest.mark.parametrize("given", UNUSED)
def test_a_setting_without_effect_is_refused(given: str) -> None:
    overrides = [word.replace("tracking.options", "+tracking.options") for word in given.split()]
    with pytest.raises(UserError, match=UNUSED[given]) as caught:
        refuse_unused(experiment(*overrides), [given.partition("=")[0]])
    fix = caught.value.fix
    assert fix
    if "<" not in fix:
        refuse_unused(experiment(*overrides, *shlex.split(fix)), [given.partition("=")[0]])


def test_steps_that_never_come_are_refused_in_a_file_too() -> None:
    with pytest.raises(
        UserError, match=r"never falls: schedule.decay_epochs=\[15,25\].*Try: schedule.decay_epochs=\[5\]"
    ):
        experiment("schedule=step", "train.epochs=10")
    experiment("schedule=step", "train.epochs=10", "schedule.decay_epochs=[5]")
    debugged(experiment("schedule=step", "debug=fast"))


def test_a_setting_with_an_effect_is_not_refused() -> None:
    refuse_unused(experiment("schedule=cosine"), ["schedule.warmup_epochs", "schedule.final_share", "train.epochs"])
