"""A run that is older than a setting can be resumed, forked and reused if the setting has its default."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from pipeline.decide.decision import decide
from pipeline.decide.job import Job
from pipeline.runs.folder import CONFIG
from pipeline.tracking.models import RESULTS
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, experiment, write_run

WORDS = (*SMALL, "tracking=off", "optimizer=adamw", "precision=mixed_bfloat16")


def earlier(folder: Path, status: str, change: Callable[[Any], None]) -> Path:
    """Write a run with the settings `WORDS` and a recorded configuration edited by `change`; return its folder."""
    config = OmegaConf.create(OmegaConf.to_container(experiment(*WORDS).document, resolve=True))
    change(config)
    run = write_run(folder / "runs" / "tried" / "20260101-000000-aaaaaaaa", status, identity="0" * 32)
    OmegaConf.save(config, run / CONFIG)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-00000001.npz").touch()
    (run / RESULTS / "train").mkdir(parents=True)
    return run


def removing(*names: str) -> Callable[[Any], None]:
    """Return a function that removes settings from a configuration."""

    def remove(config: Any) -> None:
        for name in names:
            parent, _, key = name.rpartition(".")
            del (OmegaConf.select(config, parent) if parent else config)[key]

    return remove


def start(use: str, run: Path, *words: str) -> None:
    """Decide to resume, fork or reuse `run`."""
    given = {"resume": [f"resume={run}"], "fork": [f"fork={run}"], "run": ["from=evaluate", f"run={run}"]}[use]
    decide(Job(experiment(*WORDS, *given, *words, outputs=run.parent.parent.parent)))


STATUS = {"resume": "KILLED", "fork": "FINISHED", "run": "FINISHED"}

BETA = ("optimizer.beta_1", "train.optimizer.beta_1")

ADDED = {
    "of no group": ("deterministic",),
    "of a group that stages share": BETA,
    "a group": ("schedule", "train.schedule"),
    "a group that a stage takes": ("model.precision", "train.optimizer"),
    "of the data": ("data.split_seed", "load.split_seed", "data.cache", "load.cache"),
    "with a reference, and a list": ("train.seed", "optimizer.decay_exclude"),
    "of an export format": ("export.formats.saved_model.least_agreement",),
}


@pytest.mark.parametrize("kind", ADDED)
def test_a_setting_that_was_added_later_has_its_default(kind: str, tmp_path: Path) -> None:
    start("resume", earlier(tmp_path, "KILLED", removing(*ADDED[kind])))


@pytest.mark.parametrize(("use", "names"), [("fork", ["data.split_seed"]), ("run", BETA)])
def test_a_forked_and_a_reused_run_have_the_default_as_well(use: str, names: Sequence[str], tmp_path: Path) -> None:
    start(use, earlier(tmp_path, STATUS[use], removing(*names)))


@pytest.mark.parametrize(
    ("use", "names", "word", "message"),
    [
        ("resume", BETA, "optimizer.beta_1=0.8", "optimizer.beta_1 was 0.9 and is now 0.8"),
        ("run", BETA, "optimizer.beta_1=0.8", "optimizer.beta_1 was 0.9 and is now 0.8"),
        ("resume", ["deterministic"], "deterministic=true", "deterministic was False and is now True"),
        ("resume", ["train.seed"], "train.seed=7", "train.seed was 42 and is now 7"),
        ("resume", ["model.precision"], "precision=float32", "precision.policy was mixed_bfloat16 and is now float32"),
        ("fork", ["data.split_seed"], "data.split_seed=7", "data.split_seed was 42 and is now 7"),
    ],
)  # fmt: skip
def test_another_value_than_the_default_is_refused(
    use: str, names: Sequence[str], word: str, message: str, tmp_path: Path
) -> None:
    run = earlier(tmp_path, STATUS[use], removing(*names))
    with pytest.raises(UserError, match=message) as refused:
        start(use, run, word)
    start(use, run, *([refused.value.fix] if use == "resume" else []))


@pytest.mark.parametrize(
    ("use", "name", "values"),
    [("resume", "train.label_smoothing", "0.1 and is now 0.0"), ("run", "train.label_smoothing", "0.1 and is now 0.0"),
     ("fork", "data.split_seed", "7 and is now 42")],
)  # fmt: skip
def test_a_recorded_value_other_than_the_default_is_refused(use: str, name: str, values: str, tmp_path: Path) -> None:
    run = earlier(tmp_path, STATUS[use], lambda config: OmegaConf.update(config, name, 7 if use == "fork" else 0.1))
    with pytest.raises(UserError, match=f"{name} was {values}"):
        start(use, run)
