"""Settings that nothing would read are refused where they were typed; the fix gives them an effect."""

import shlex
from pathlib import Path

import pytest

from pipeline.checks.no_effect import NAMED_BY, refuse_unused
from pipeline.config.debug import debugged
from pipeline.paths import CONF
from stages.errors import UserError
from tests.pipeline.experiments import experiment

UNUSED = {
    "cluster.restarts=1": "with cluster=local without workers",
    "strategy.cpu_replicas=2 strategy=mirrored strategy.devices=[/cpu:0]": "with strategy.devices",
    "train.fine_tune_layers=3": "train.fine_tune_epochs=0",
    "augment.magnitude=0.5": "augment.rand_augment=0",
    "augment.rotation=0.1 pipeline.augment=null": "leaves the stage augment out",
    "train.cache_features=off train=fit model=mobilenet_v2 model.frozen=true": "with train=fit",
    "train.cache_features=off": "with model.frozen=false",
    "train.cache_features=off model=mobilenet_v2 model.frozen=true augment=flip": "with changes of single images",
    "augment.where=model": "without changes of single images",
    "augment.where=input augment.mixup=0.2": "without changes of single images",
    "cluster.timeout_seconds=9 cluster=slurm": "with cluster=slurm without workers",
    "cluster.port=2000 cluster=slurm": "with cluster=slurm without workers",
}


UNDONE = {
    "precision=float32": ("precision.policy=mixed_bfloat16", "precision.policy=float32"),
    "precision=mixed": ("precision.policy=float16", "precision.policy=mixed"),
    "normalize=none": ("normalize.method=standardize", "normalize.method=none"),
    "augment=none": ("augment.crop=0.1 augment.horizontal_flip=true", "augment.horizontal_flip=false augment.crop=0.0"),
}
"""From what is typed to what an experiment's file sets beside it, and what to type."""


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("group", [*NAMED_BY, "augment"])
def test_every_option_is_in_effect_by_itself(group: str) -> None:
    for path in (CONF / group).glob("*.yaml"):
        more = ["schedule._target_=keras.optimizers.schedules.CosineDecay"] if path.stem == "custom" else []
        refuse_unused(experiment(f"{group}={path.stem}", *more), [group])


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_experiment_of_the_project_undoes_an_option(path: Path) -> None:
    data = "data.download=true" if "TFDS" in path.read_text() else "data.dir=."
    options = ("normalize=none", "precision=bfloat16", "tracking=local", "augment=none")
    refuse_unused(experiment(f"experiment={path.stem}", data, *options), [*NAMED_BY, "augment"])


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
