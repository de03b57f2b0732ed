"""Views of an experiment in MLflow: they are written once, replaced, kept small, and never stop a run."""

import functools
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking import views
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker
from pipeline.tracking.views import LONGEST, MOST_LISTED, TAG, View, changed_tag
from tests.pipeline.experiments import Patch
from tests.pipeline.tracking.journals import LOCAL, Tried, begin, client, folder_of
from tests.servers import free_port, mlflow_server

METRICS = ["val/best_accuracy", "test/accuracy", "train/images_per_second"]


def tags_of(store: MlflowClient) -> dict[str, str]:
    """Return the views of the experiment: the values of the tags by key."""
    [own] = store.search_experiments(filter_string="name = 'tried'")
    return {key.removeprefix(TAG): value for key, value in own.tags.items() if key.startswith(TAG)}


def state_of(value: str) -> dict[str, Any]:
    """Return a view as MLflow's page reads it."""
    return views._read(value)[2]


def written(view: View, tags: dict[str, str] | None = None, now: int = 1) -> str:
    """Return the value of the view's tag."""
    tag = changed_tag(view, tags or {}, now)
    assert tag is not None
    assert tag[0] == TAG + view.key
    return tag[1]


def finish(tracker: Tracker, *settings: str) -> None:
    tracker.view("All runs", ["model", *settings], METRICS, False)
    tracker.status("FINISHED")
    assert tracker.close(60) == 0


@pytest.mark.smoke
def test_repeated_runs_share_one_view_that_has_the_settings_of_all(outputs: Path) -> None:
    """A run that is sent again changes nothing."""
    for name, settings in ("first", ["seed"]), ("second", ["odd[0]", "seed"]), ("third", []):
        finish(begin(outputs, name), *settings)
    [(key, value)] = tags_of(client(outputs)).items()
    state = state_of(value)
    assert (key, json.loads(value)["name"]) == ("runs", "All runs")
    shown = [f"params.`{name}`" for name in ("model", "seed", "odd_0_")] + [f"metrics.`{name}`" for name in METRICS]
    assert state["selectedColumns"] == [*shown, "attributes.`Duration`"]
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`val/best_accuracy`", False)
    begin(outputs, "second").close(60)
    assert tags_of(client(outputs)) == {key: value}


def test_the_link_of_a_sweep_opens_its_jobs_and_the_link_of_a_run_its_page(outputs: Path) -> None:
    folder = folder_of(outputs, "sweep")
    folder.mkdir(parents=True)
    sweep = Tried(RunSpec(LOCAL, outputs, folder, "tried", "lr", has_jobs=True))
    sweep.view("lr, 4 jobs", ["lr"], ["val/best_loss"], True, ["lr=1", "lr=2"])
    assert sweep.close(60) == 0
    run = begin(outputs)
    run.close(60)
    [(key, value)] = tags_of(client(outputs)).items()
    links = dict(sweep.links)
    assert [label for label, _ in sweep.links] == ["open", "", "charts"]
    assert links[""].endswith(f"/runs?workflowType=machine_learning&viewStateShareKey={key}")
    assert links["charts"] == f"{links['']}&compareRunsMode=CHART"
    state = state_of(value)
    assert state["searchFilter"] == f"tags.`mlflow.parentRunId` = '{sweep.run_id}'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`val/best_loss`", True)
    assert state["groupsExpanded"] == {"tag.combination.lr=1": False, "tag.combination.lr=2": False}
    assert f"/runs/{run.run_id}?" in dict(run.links)[""]
    assert dict(run.links)["all runs"].endswith("viewStateShareKey=runs")


@pytest.mark.slow
def test_a_server_gets_the_view_when_it_is_back(tmp_path: Path, migrated_store: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(migrated_store, tmp_path / "server.db")
    port = free_port()
    settings = TrackingSettings(kind="server", uri=f"http://127.0.0.1:{port}")
    server = functools.partial(mlflow_server, f"sqlite:///{tmp_path}/server.db", tmp_path / "kept", port)
    with server(ending=signal.SIGKILL):
        tracker = begin(tmp_path / "outputs", settings=settings)
    tracker.view("All runs", ["model"], METRICS, False)  # returns although no server responds
    tracker.status("FINISHED")
    assert tracker.unsent >= 2
    with server():
        assert tracker.close(60) == 0
        assert tags_of(MlflowClient(settings.uri)).keys() == {"runs"}


def test_a_view_that_may_not_be_written_does_not_stop_the_run(outputs: Path, monkeypatch: Patch) -> None:
    """On some servers, users may record runs but not edit the experiment."""

    def forbidden(*given: object) -> None:
        raise MlflowException("Permission denied", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", forbidden)
    tracker = begin(outputs)
    finish(tracker)
    assert tracker.notes == ["MLflow does not allow you to edit the experiment, so the view 'All runs' was not saved"]


def test_users_can_still_save_their_own_views() -> None:
    """MLflow does not save a view of a user if it already lists 40."""
    tags: dict[str, str] = {}
    for number in range(50):
        view = View(f"sweep {number}", ["lr"], METRICS, False, parent=f"{number}".ljust(32, "x"))
        tags[TAG + view.key] = written(view, tags)
    assert sum(bool(views._read(value)[0]) for value in tags.values()) == MOST_LISTED
    assert len(tags) == 50
    assert all(state_of(value)["orderByKey"] == "metrics.`val/best_accuracy`" for value in tags.values())


def test_a_view_fits_in_a_tag() -> None:
    def sweep(combinations: int, characters: int) -> View:
        names = [f"{number} {'abcdefghij' * characters}{number * 7919}" for number in range(combinations)]
        return View("many", [f"setting.number_{index}" for index in range(99)], METRICS, False, names, "x" * 32)

    assert len(written(sweep(6, 2))) < 2_000
    assert len(written(sweep(100_000, 30))) < LONGEST


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", "deflate;", "deflate;AAAA", '{"name": 1}', '{"name":"a","state":"x"}']
)
def test_a_damaged_view_is_replaced(damaged: str) -> None:
    view = View("All runs", ["model"], METRICS, False)
    assert state_of(written(view, {f"{TAG}runs": damaged})) == view.state()


def test_a_view_that_is_written_again_keeps_its_time() -> None:
    first = View("All runs", ["model"], METRICS, False)
    before = {f"{TAG}runs": written(first, now=1)}
    assert changed_tag(first, before, 2) is None
    again = json.loads(written(View("All runs", ["seed"], METRICS, False), before, now=3))
    assert (again["createdAt"], again["updatedAt"]) == (1, 3)
