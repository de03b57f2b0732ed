"""Settings that nothing would read are refused where they were typed; the fix gives them an effect."""

from pathlib import Path

import pytest

from pipeline.checks.unused import NAMED_BY, refuse_unused
from pipeline.paths import CONF
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


UNDONE = {
    "precision=float32": ("precision.policy=mixed_bfloat16", "precision.policy=float32"),
    "precision=mixed": ("precision.policy=float16", "precision.policy=mixed"),
    "normalize=none": ("normalize.method=standardize", "normalize.method=none"),
    "schedule=constant": ("schedule.name=cosine", "schedule.name=constant"),
    "augment=none": ("augment.crop=0.1 augment.horizontal_flip=true", "augment.horizontal_flip=false augment.crop=0.0"),
}
"""From what is typed to what an experiment's file sets beside it, and what to type."""


@pytest.mark.parametrize("typed", UNDONE)
def test_an_option_that_an_experiments_file_undoes_is_refused(typed: str) -> None:
    """As a sweep over it would compare equal runs under different names."""
    beside, fix = UNDONE[typed]
    both = experiment(typed, *beside.split())
    with pytest.raises(UserError, match=f"{typed} has no effect beside {beside.split()[-1]}") as caught:
        refuse_unused(both, [typed.partition("=")[0]])
    assert fix in str(caught.value.fix)
    refuse_unused(both, [])  # not typed: a file may set what it likes
    refuse_unused(experiment(typed, *beside.split(), *str(caught.value.fix).split()), [typed.partition("=")[0]])


@pytest.mark.parametrize("group", [*NAMED_BY, "augment"])
def test_every_option_is_in_effect_by_itself(group: str) -> None:
    for path in (CONF / group).glob("*.yaml"):
        more = ["schedule._target_=keras.optimizers.schedules.CosineDecay"] if path.stem == "custom" else []
        refuse_unused(experiment(f"{group}={path.stem}", *more), [group])


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_experiment_of_the_project_undoes_an_option(path: Path) -> None:
    data = "data.download=true" if "TFDS" in path.read_text() else "data.dir=."
    options = ("normalize=none", "precision=bfloat16", "schedule=constant", "tracking=local", "augment=none")
    refuse_unused(experiment(f"experiment={path.stem}", data, *options), [*NAMED_BY, "augment"])


@pytest.mark.parametrize("given", UNUSED)
def test_a_setting_without_effect_is_refused(given: str) -> None:
    overrides = given.split()
    with pytest.raises(UserError, match=UNUSED[given]) as caught:
        refuse_unused(experiment(*overrides), [given.partition("=")[0]])
    assert caught.value.fix


def test_a_setting_with_an_effect_is_not_refused() -> None:
    refuse_unused(experiment("schedule=cosine"), ["schedule.warmup_epochs", "schedule.final_share", "train.epochs"])
