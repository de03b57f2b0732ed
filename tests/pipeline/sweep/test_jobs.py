"""The jobs of a sweep before it begins: equal ones are refused, and they share GPUs and threads."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.command_line.arguments import read_arguments
from pipeline.command_line.compose import Composer
from pipeline.config.schemas import SweepSettings
from pipeline.console import Console
from pipeline.exit_codes import WRONG_CONFIGURATION
from pipeline.launch.slots import Slot, deal_out
from pipeline.provenance.identity import identity
from pipeline.runs.facts import Facts
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import StageOutcome
from pipeline.search.work import work_of
from pipeline.sweep.claim import to_resume
from pipeline.sweep.grid import Grid, checked_jobs
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.listing import started
from pipeline.sweep.queue import refusal_in
from pipeline.sweep.select import read_all
from pipeline.sweep.source import KnownJobs
from pipeline.sweep.sweep import Sweep, jobs_to_finish, record_jobs, run_sweep
from pipeline.system import machine
from pipeline.system.environment import THREADS
from pipeline.system.machine import GPUS, Gpu
from pipeline.tracking.follower import Follower
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests.pipeline.experiments import experiment, write_run


def jobs(outputs: Path, *words: str) -> list[SweepJob]:
    composer = Composer(read_arguments(["-m", *words, "tracking=off", f"outputs={outputs}"]))
    return checked_jobs(composer.jobs(), len(composer.grid))


@pytest.mark.parametrize(
    ("words", "said"),
    [(("seed=1,1",), "jobs 1 and 2 have the same settings (seed=1"),
     (("seed=range(0,1000000)",), "these values make 1,000,000 jobs"),
     (("seed=1,2", "optimizer.learning_rate=0.1,1e-1"), "jobs 1 and 2 have the same settings"),
     (("seed=1,2", "evaluate.against=nope"), "against=nope"), (("name=a,b",), "have the same settings (name=b")],
)  # fmt: skip
def test_equal_or_too_many_jobs_are_refused(words: tuple[str, ...], said: str, outputs: Path) -> None:
    with pytest.raises(UserError) as refused:
        jobs(outputs, *words)
    assert said in str(refused.value)


def test_impossible_forks_are_refused_before_a_sweep_begins(outputs: Path, tmp_path: Path) -> None:
    """Their settings are checked by every command, the checkpoint that they start from only by the first one."""
    run = write_run(outputs / "runs" / "digits_cnn" / "earlier")
    (run / "checkpoints").mkdir()
    OmegaConf.save(experiment().document, run / "config.yaml")
    with pytest.raises(UserError, match=r"job 2 of 2 .*model\.network\._target_ was .* and is now .*a new run"):
        jobs(outputs, f"fork={run}", "model=cnn,mlp")
    assert len(jobs(outputs, f"fork={run}", "seed=1,2")) == 2
    composer = Composer(read_arguments(["-m", f"fork={run}", "seed=1,2", "tracking=off", f"outputs={outputs}"]))
    with pytest.raises(UserError, match="has no checkpoint"):
        run_sweep(work_of(composer), Console())
    assert not (outputs / "sweeps").exists()


def test_the_reason_for_refusing_a_job_is_printed_and_recorded(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Grid(jobs(outputs, "seed=1,2"), SweepSettings())
    source = KnownJobs(work.jobs)
    sweep = Sweep(work, source, outputs / "sweeps" / "s", Tracker(), Follower(), None, Console())
    folder = sweep.folder / "1_seed=1"
    folder.mkdir(parents=True)
    (folder / "pipeline.log").write_text("09:49:56   7  evaluate\n09:49:57 error: fork=a: it is gone. Expected b\n")
    first = sweep._next(source)
    assert first is not None
    sweep._ended(source, first, WRONG_CONFIGURATION, 1.0, False)
    assert work.jobs[0].reason == "fork=a: it is gone. Expected b"
    assert "REFUSED in 1.0 s, exit code 2: fork=a: it is gone" in capsys.readouterr().out
    assert refusal_in(RunFolder(outputs / "none")) is None


@pytest.mark.parametrize(
    ("finish", "validated", "finished"),
    [("all", "aa", ["best_1", "best_2"]), ("best", "aa", ["best_2"]), ("best", "ab", None)],
)
def test_jobs_that_have_only_trained_are_finished_as_the_last_command_requests(
    finish: str, validated: str, finished: list[str] | None, outputs: Path
) -> None:
    """Only the best one, or all, even if the sweep began with `finish=best`. It is an error if none is the best."""
    work = Grid(jobs(outputs, "train.epochs=2,3"), SweepSettings(finish=finish))
    source, folder = KnownJobs(work.jobs), outputs / "sweeps" / "s"
    left = dict.fromkeys(("evaluate", "export"), StageOutcome("skipped"))
    for job, examples in zip(work.jobs, validated, strict=True):
        facts, metrics = Facts(val_examples=examples), {"val/best_accuracy": job.number / 2}
        write_run(folder / job.folder, stages=left, facts=facts, metrics=metrics)
    Sweep(work, source, folder, Tracker(), Follower(), None, Console()).run(source, [Slot()])  # nothing is left to run
    assert source.next() is None
    if finished is None:
        with pytest.raises(UserError, match=r"none is the best.* Try: sweep\.finish=all"):
            jobs_to_finish(folder, source.jobs, finish)
    else:
        work.settings.finish = "best"
        record_jobs(work, source, folder, "FINISHED")
        work.settings.finish = finish
        assert to_resume(work, print) == (folder if finish == "all" else None)
        assert [job.folder for job in jobs_to_finish(folder, source.jobs, finish)] == finished


def test_the_start_time_of_a_job_does_not_change_when_its_folder_is_copied(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "sweeps" / "copied" / "1_seed=1")
    (folder / "tracking.jsonl").write_text(
        '{"store": {"run_id": "1a"}}\n{"call": "status", "given": {"status": "RUNNING", "time": 86400000}}\n'
    )
    [job] = read_all(tmp_path)
    assert started(job).timestamp() == 86400


def test_jobs_differ_by_settings_that_are_only_named_like_secrets() -> None:
    """Credentials do not make jobs different, as no result depends on them."""
    own = "+extra={_target_: own.stage, %s: %s}"
    first, second = (experiment("+pipeline.extra=report", own % ("keep_token", value)) for value in (0.1, 0.9))
    assert identity(first) != identity(second)
    first, second = (experiment("+pipeline.extra=report", own % ("api_token", f"kZq8x{value}")) for value in (1, 2))
    assert identity(first) == identity(second)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu("made up", (8, 0)),) * 4)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    for name in (GPUS, *THREADS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("n_jobs", "each", "expected"),
    [(1, None, [None]), (1, 2, ["0,1"]), (2, None, ["0,1", "2,3"]), (2, 1, ["0", "1"]),
     (3, 0, ["-1", "-1", "-1"]), (5, None, ["0", "1", "2", "3", "0"])],
)  # fmt: skip
def test_jobs_share_the_gpus_and_threads(n_jobs: int, each: int | None, expected: list[str | None]) -> None:
    places = deal_out(SweepSettings(n_jobs=n_jobs, devices_per_job=each), [experiment()])
    assert [place.environment(experiment()).get(GPUS) for place in places] == expected
    threads = {place.environment(experiment()).get(THREADS[0]) for place in places}
    assert threads == ({None} if n_jobs == 1 else {str(8 // n_jobs)})
    assert not set(THREADS) & places[0].environment(experiment("deterministic=true")).keys()


@pytest.mark.usefixtures("four_gpus")
def test_jobs_share_only_the_gpus_that_the_user_has_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPUS, "5,7,8,9")
    monkeypatch.setenv(THREADS[0], "3")
    places = deal_out(SweepSettings(n_jobs=2), [experiment()])
    assert [place.environment(experiment())[GPUS] for place in places] == ["5,7", "8,9"]
    assert THREADS[0] not in places[0].environment(experiment())


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "overrides", "message"),
    [
        (SweepSettings(n_jobs=2, devices_per_job=3), (), "6 GPUs"),
        (SweepSettings(n_jobs=2), ("strategy=multi_worker", "cluster=tf_config"), "each job uses all of it"),
        (SweepSettings(devices_per_job=1), ("cluster=ray",), "jobs get their GPUs from the cluster"),
    ],
)
def test_jobs_that_cannot_share_the_machine_are_refused(
    settings: SweepSettings, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        deal_out(settings, [experiment(*overrides)])


def test_jobs_on_a_cluster_get_no_part_of_this_machine() -> None:
    given = [experiment("cluster=ray", "cluster.cpus=3"), experiment("cluster=ray")]
    assert deal_out(SweepSettings(n_jobs=2), given) == [Slot()] * 2
