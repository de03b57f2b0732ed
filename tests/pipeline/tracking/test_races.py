"""Records that two processes write at the same time. Neither is lost."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from sqlalchemy import Engine, event

from pipeline.runs.journal import Entry
from pipeline.tracking import stored_run
from pipeline.tracking.mlflow_run import MlflowRun
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from tests.pipeline.experiments import Patch
from tests.pipeline.tracking.journals import LOCAL

DATA = Entry("dataset", {"name": "digits", "digest": "0a1b", "sizes": {"train": 10}})
INSERTED = {
    "dataset": "INSERT INTO datasets", "experiment": "INSERT INTO experiments",
    "model": "INSERT INTO registered_models", "alias": "INSERT INTO registered_model_aliases",
}  # fmt: skip


@contextmanager
def together(statement: str) -> Iterator[None]:
    """Make two threads wait for each other before they execute `statement`, which both found to be necessary."""
    barrier, met = threading.Barrier(2), set[int]()

    def wait(_: object, __: object, text: str, *___: object) -> None:
        if text.startswith(statement) and threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait(30)

    event.listen(Engine, "before_cursor_execute", wait)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", wait)
    assert len(met) == 2, "they have not met"


def begin(outputs: Path, name: str) -> MlflowRun:
    folder = outputs / "runs" / "tried" / name
    folder.mkdir(parents=True, exist_ok=True)
    return MlflowRun(RunSpec(LOCAL, outputs, folder, "tried", name), None)


def test_two_runs_that_record_the_same_data_set_at_once_both_have_it(outputs: Path) -> None:
    runs = [begin(outputs, name) for name in ("a", "b")]
    with together(INSERTED["dataset"]), ThreadPoolExecutor(2) as pool:
        answers = [*pool.map(lambda run: run.send(DATA), runs)]
    assert [(list(answer.refused), answer.trouble) for answer in answers] == 2 * [([], None)]
    for run in runs:
        [own] = run._client.get_run(run.run_id).inputs.dataset_inputs
        assert own.dataset.digest == "0a1b"


def test_two_runs_that_begin_the_same_experiment_at_once_share_it(outputs: Path) -> None:
    store = Store(LOCAL, outputs)
    client = store.client()
    with together(INSERTED["experiment"]), ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: store.experiment_id(client, "tried"), range(2))
    assert first == second
    client.delete_experiment(first)
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda _: store.experiment_id(client, "tried"), range(8))} == {first}
    [own] = client.search_experiments(ViewType.ACTIVE_ONLY, filter_string="name = 'tried'")
    assert own.experiment_id == first


@pytest.mark.parametrize("what", ["model", "alias"])
def test_a_name_that_two_runs_register_at_once_is_a_race_or_exists(what: str, outputs: Path) -> None:
    run = begin(outputs, "a")
    client = run._client
    if what == "alias":
        client.create_registered_model("digits")
        client.create_model_version("digits", str(outputs), run.run_id)

    def register(_: int) -> Exception | None:
        try:
            if what == "model":
                client.create_registered_model("digits")
            else:
                client.set_registered_model_alias("digits", "champion", "1")
        except MlflowException as error:
            return error
        return None

    with together(INSERTED[what]), ThreadPoolExecutor(2) as pool:
        errors = [error for error in pool.map(register, range(2)) if error is not None]
    for error in errors:
        assert isinstance(error, MlflowException)
        assert run.is_race(error) or error.error_code == "RESOURCE_ALREADY_EXISTS"
        assert register(0) is None or what == "model"


@pytest.mark.parametrize(
    ("message", "attempts"),
    [
        ("(sqlite3.IntegrityError) UNIQUE constraint failed: datasets.experiment_id, datasets.name", stored_run.RACES),
        ("(psycopg2.errors.UniqueViolation) duplicate key value violates unique constraint", stored_run.RACES),
        ("(pymysql.err.IntegrityError) (1062, \"Duplicate entry 'a' for key 'PRIMARY'\")", stored_run.RACES),
        ("(psycopg2.errors.StringDataRightTruncation) value too long for type character varying(500)", 1),
        ("(sqlite3.IntegrityError) NOT NULL constraint failed: params.value", 1),
    ],
)
def test_a_permanent_duplicate_does_not_stop_later_records(
    message: str, attempts: int, outputs: Path, monkeypatch: Patch
) -> None:
    """A database may treat two names as equal. Errors of a server do not have a cause."""
    run, sent = begin(outputs, "a"), list[Any]()

    def fail(**given: Any) -> None:
        sent.append(given)
        raise MlflowException(message, BAD_REQUEST)

    monkeypatch.setattr(stored_run, "RACE_SECONDS", 0.0)
    monkeypatch.setattr(run, "dataset", fail)
    answer = run.send(DATA)
    assert (len(answer.refused), answer.trouble, len(sent)) == (1, None, attempts)
