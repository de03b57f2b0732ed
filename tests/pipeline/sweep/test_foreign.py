"""Third-party sweepers run this project's jobs, by its launcher, with its checks."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.sweep.comparison import compare, latest
from stages.errors import UserError
from tests.pipeline.experiments import SMALL, TRAINED

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_hydras_own_sweeper_runs_jobs_in_batches(pipeline_command: Command, tmp_path: Path) -> None:
    done = pipeline_command(
        "-m", "hydra/sweeper=basic", "hydra.sweeper.max_batch_size=1", "seed=1,2", *SMALL,
        *TRAINED, "tracking=off", f"outputs={tmp_path}/outputs",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by a third-party sweeper" in done.stdout
    assert [run.status for run in compare(latest(tmp_path / "outputs")).runs] == ["FINISHED", "FINISHED"]
    assert not list(tmp_path.glob("multirun"))  # of Hydra's own files none is left


@pytest.mark.slow
def test_a_wrong_job_is_refused_before_anything_is_recorded(pipeline_command: Command, tmp_path: Path) -> None:
    done = pipeline_command(
        "-m", "hydra/sweeper=basic", "strategy=one_device,parameter_server", "train=fit", f"outputs={tmp_path}/outputs",
        trains=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "outputs").glob("sweeps/*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hydra/sweeper=basic", "seed=1"], "is for a sweep"),
        (["-m", "hydra.sweeper.max_batch_size=2", "seed=1,2"], "have no effect here"),
        (["-m", "hydra/launcher=joblib", "seed=1,2"], "have no effect here"),
    ],
)
def test_what_would_have_no_effect_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Composer(read_arguments(words))
