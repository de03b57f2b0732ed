"""Places of jobs that run at the same time: GPUs and threads dealt out, and what cannot work refused."""

import pytest

from pipeline.config.sweep import SweepSettings
from pipeline.sweep.queue import GPUS, Slot, deal_out
from pipeline.system import machine
from pipeline.system.environment import THREADS
from pipeline.system.machine import Gpu
from stages.errors import UserError
from tests.pipeline.experiments import experiment


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu("made up", (8, 0)),) * 4)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    for name in (GPUS, *THREADS):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("n_jobs", "each", "expected"),
    [(1, None, [None]), (1, 2, ["0,1"]), (2, None, ["0,1", "2,3"]), (4, None, ["0", "1", "2", "3"]),
     (2, 1, ["0", "1"]), (3, 0, ["-1", "-1", "-1"])],
)  # fmt: skip
def test_gpus_are_dealt_out(n_jobs: int, each: int | None, expected: list[str | None]) -> None:
    places = deal_out(SweepSettings(n_jobs=n_jobs, devices_per_job=each), [experiment()])
    assert [place.environment(experiment()).get(GPUS) for place in places] == expected
    threads = {place.environment(experiment()).get(THREADS[0]) for place in places}
    assert threads == ({None} if n_jobs == 1 else {str(8 // n_jobs)})
    assert not set(THREADS) & places[0].environment(experiment("deterministic=true")).keys()


@pytest.mark.usefixtures("four_gpus")
def test_those_that_the_user_has_chosen_are_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPUS, "5,7,8,9")
    monkeypatch.setenv(THREADS[0], "3")
    places = deal_out(SweepSettings(n_jobs=2), [experiment()])
    assert [place.environment(experiment())[GPUS] for place in places] == ["5,7", "8,9"]
    assert THREADS[0] not in places[0].environment(experiment())


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("settings", "overrides", "message"),
    [
        (SweepSettings(n_jobs=5), (), "5 GPUs, 4 are there"),
        (SweepSettings(n_jobs=2, devices_per_job=3), (), "6 GPUs"),
        (SweepSettings(n_jobs=2), ("strategy=multi_worker", "cluster=tf_config"), "takes the whole of it"),
        (SweepSettings(devices_per_job=1), ("cluster=ray",), "jobs get their GPUs from it"),
    ],
)
def test_what_cannot_work_is_refused(settings: SweepSettings, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        deal_out(settings, [experiment(*overrides)])


def test_jobs_that_an_engine_places_share_its_settings() -> None:
    alone = experiment("cluster=ray", "cluster.cpus=3")
    assert deal_out(SweepSettings(n_jobs=2), [alone]) == [Slot()] * 2
    with pytest.raises(UserError, match="different clusters"):
        deal_out(SweepSettings(), [alone, experiment("cluster=ray")])


def test_without_a_gpu_none_can_be_dealt_out() -> None:
    with pytest.raises(UserError, match="2 GPUs, 0 are there"):
        deal_out(SweepSettings(n_jobs=2, devices_per_job=1), [experiment()])
