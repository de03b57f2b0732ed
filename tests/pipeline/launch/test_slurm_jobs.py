"""Jobs in Slurm's queue: the resources that they request, and the progress that their folders show."""

import math
from pathlib import Path

import pytest

from pipeline.config.cluster import SlurmCluster
from pipeline.decide.job import Job
from pipeline.launch.slurm import parameters
from pipeline.runs.finding import progress
from pipeline.runs.folder import RunFolder
from pipeline.runs.journal import Journal
from stages.errors import UserError
from tests.pipeline.experiments import experiment, write_run


def test_the_progress_of_a_job_is_read_from_its_journal(outputs: Path) -> None:
    folder = outputs / "jobs" / "0"
    epoch, score = progress(folder, 0)
    assert epoch == 0
    assert math.isnan(score)
    write_run(folder, "RUNNING")
    journal = Journal(folder)
    for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, math.nan), (4, 0.6)):
        journal.add("metrics", {"values": {"train/loss": 1.0, "val/accuracy": accuracy}, "step": epoch, "time": 1})
        assert progress(folder, epoch) == (epoch, max(0.5, 0.75 * (epoch > 1)))


def test_every_setting_of_the_group_reaches_submitit(outputs: Path) -> None:
    """They have submitit's names, which submitit converts to options of sbatch."""
    single, several = (
        Job(experiment("name=asked", *strategy, outputs=outputs), RunFolder(outputs / "jobs" / "0"))
        for strategy in ((), ("strategy=multi_worker", "strategy.workers=4"))
    )
    least = parameters(single, SlurmCluster())
    settings = SlurmCluster(
        partition="long", account="vision", minutes=90, nodes=2, cpus_per_task=6, gpus_per_task=1, memory_gib=1.5,
        signal_seconds=45, options={"constraint": "a100"},
    )  # fmt: skip
    assert parameters(several, settings) == {
        "job_name": "asked", "partition": "long", "account": "vision", "time": 90, "nodes": 2, "cpus_per_task": 6,
        "gpus_per_task": 1, "mem": "1536M", "signal_delay_s": 45, "stderr_to_stdout": True, "wckey": None,
        "srun_args": ["--open-mode=append", "--cpus-per-task=6"],
        "additional_parameters": {"ntasks": 4, "distribution": "block", "requeue": True, "constraint": "a100"},
    }  # fmt: skip
    left_to_slurm = {"partition", "account", "cpus_per_task", "gpus_per_task", "mem"}
    assert left_to_slurm & least.keys() == set()
    assert least["srun_args"] == ["--open-mode=append"]
    assert least["additional_parameters"]["ntasks"] == 1


def test_the_signal_must_be_shorter_before_the_end_than_the_time_limit() -> None:
    with pytest.raises(UserError, match=r"is not shorter than the job's time limit.*Try: cluster\.signal_seconds=40"):
        experiment("cluster=slurm", "cluster.minutes=2", "cluster.signal_seconds=120")
    experiment("cluster=slurm", "cluster.minutes=2", "cluster.signal_seconds=40")
