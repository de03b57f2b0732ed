"""Jobs in Slurm's queue, as far as their folders tell of them."""

import math
from pathlib import Path

from pipeline.engines.slurm_jobs import SlurmJob
from pipeline.run.console import Console
from pipeline.run.job import Job
from pipeline.tracking.journal import Journal
from tests.pipeline.experiments import experiment


def test_a_submitted_job_shows_the_epochs_that_its_journal_has(outputs: Path) -> None:
    folder = outputs / "jobs" / "0"
    submitted = SlurmJob(Job(experiment(outputs=outputs), (), folder), "7_0", folder / "log", Console())
    assert submitted.progress[0] == 0
    assert math.isnan(submitted.progress[1])
    folder.mkdir(parents=True)
    journal = Journal(folder)
    for epoch, accuracy in ((1, 0.5), (2, 0.75), (3, math.nan), (4, 0.6)):
        journal.add("metrics", {"values": {"train/loss": 1.0, "val/accuracy": accuracy}, "step": epoch})
        assert submitted.progress == (epoch, max(0.5, 0.75 * (epoch > 1)))
