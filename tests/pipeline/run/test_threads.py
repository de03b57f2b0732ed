"""A deterministic run that resumes with another number of threads says that the last bits may differ."""

from pathlib import Path

import pytest

from pipeline.console import Console
from pipeline.planning.job import Job
from pipeline.run.executor import THREADS, _first_summary, _warn_of_other_threads
from pipeline.run_folder.summary import Summary
from pipeline.system import machine
from tests.pipeline.experiments import experiment


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("threads", [3, 5])
def test_another_number_of_threads_is_said(
    deterministic: bool, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.system.machine.gpus", lambda: ())
    job = Job(experiment(f"deterministic={str(deterministic).lower()}"))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    began = _first_summary(job, tmp_path, "")
    assert warnings(job, began) == []
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", str(threads))
    resuming = job.resuming(began)
    resumed = _first_summary(resuming, tmp_path, "")
    assert resumed.facts[THREADS] == 3  # however often it resumes
    said = warnings(resuming, resumed)
    assert len(said) == (deterministic and threads != 3)
    assert all(f"began with 3 thread(s) and resumes with {threads}" in line for line in said)
    assert all("Try: TF_NUM_INTRAOP_THREADS=3 before the same command" in line for line in said)


def test_the_cores_that_may_be_used_count_where_no_variable_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0", "many"):
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", value)
        assert machine.compute_threads() == machine.usable_cores()


def warnings(job: Job, made: Summary) -> list[str]:
    console = Console()
    _warn_of_other_threads(job, made, console)
    return [line for line in console.said if "thread(s)" in line]
