"""Settings that nothing would read are refused where they were typed; the fix gives them an effect."""

import json
import shlex
from pathlib import Path

import pytest

from pipeline.checks.unused import NAMED_BY, refuse_unused
from pipeline.config.debug import debugged
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
    "schedule.decay_epochs=[10,40] schedule=step": "train.epochs=30 end before",
    "schedule.patience=5 schedule=plateau train.epochs=5": "train.epochs=5 end before",
    "train.early_stopping_patience=3 train.epochs=3": "train.epochs=3 end before",
    "train.cache_features=off train=fit model=mobilenet_v2 model.frozen=true": "train=fit saves each epoch, and caches",
    "train.cache_features=off": "model.frozen=false",
    "train.cache_features=off model=mobilenet_v2 model.frozen=true augment=flip": "augment=flip changes the images",
    "augment.where=model": "nothing in augment changes single images",
    "augment.where=input augment.mixup=0.2": "nothing in augment changes single images",
    "augment.without_color=skip augment=flip": "neither augment.saturation nor augment.hue",
    "export.reload_seconds=30 export.reload=here": "waits for no other process",
    "export.formats.litert_float32.representative_examples=9 export=litert": "they are for int8",
    "data.test_fraction=0.3 data=synthetic": "data.test_examples says how many",
    "data.on_error=skip data=synthetic": "can all be used",
    "model.network.dropout=0.3 model=mlp model.network.hidden=[]": "follows each hidden layer",
    "tracking.options.project=x": "MLflow's runs read none",
    "cluster.timeout_seconds=9 cluster=slurm": "strategy=one_device has no workers",
    "cluster.port=2000 cluster=slurm": "strategy=one_device has no workers",
}


UNDONE = {
    "precision=float32": ("precision.policy=mixed_bfloat16", "precision.policy=float32"),
    "precision=mixed": ("precision.policy=float16", "precision.policy=mixed"),
    "normalize=none": ("normalize.method=standardize", "normalize.method=none"),
    "schedule=constant": ("schedule.name=cosine", "schedule.name=constant"),
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
    options = ("normalize=none", "precision=bfloat16", "schedule=constant", "tracking=local", "augment=none")
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


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_share_of_a_split_that_has_a_folder_is_refused(split: str, tmp_path: Path) -> None:
    for name in ("train", split):
        for kind in ("cat", "dog"):
            (tmp_path / name / kind).mkdir(parents=True)
    given = experiment("data=image_folder", f"data.dir={tmp_path}", "data.val_fraction=0.3", "data.test_fraction=0.3")
    with pytest.raises(UserError, match=f"data.{split}_fraction has no effect: the data set has this split already"):
        refuse_unused(given, [f"data.{split}_fraction"])
    refuse_unused(given, [f"data.{'val' if split == 'test' else 'test'}_fraction"])


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_share_of_a_split_that_tfds_has_prepared_is_refused(split: str, tmp_path: Path) -> None:
    place = tmp_path / "mine" / "1.0.0"
    place.mkdir(parents=True)
    names = ("train", "validation" if split == "val" else split)
    info = {"splits": [{"name": name, "shardLengths": ["9"]} for name in names]}
    (place / "dataset_info.json").write_text(json.dumps(info))
    (place / "features.json").write_text("{}")
    given = experiment("data=tfds", "data.name=mine", f"data.dir={tmp_path}")
    with pytest.raises(UserError, match="the data set has this split already"):
        refuse_unused(given, [f"data.{split}_fraction"])
    refuse_unused(given, [f"data.{'val' if split == 'test' else 'test'}_fraction"])


def test_steps_that_never_come_are_refused_in_a_file_too() -> None:
    with pytest.raises(
        UserError, match=r"never falls: schedule.decay_epochs=\[15,25\].*Try: schedule.decay_epochs=\[5\]"
    ):
        experiment("schedule=step", "train.epochs=10")
    experiment("schedule=step", "train.epochs=10", "schedule.decay_epochs=[5]")
    debugged(experiment("schedule=step", "debug=fast"))


def test_a_setting_with_an_effect_is_not_refused() -> None:
    refuse_unused(experiment("schedule=cosine"), ["schedule.warmup_epochs", "schedule.final_share", "train.epochs"])
