"""A folder from somebody else cannot direct the user's credentials and files to an address."""

import json
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow.exceptions import MlflowException

from pipeline.commands import sync
from pipeline.config.schemas import TrackingSettings
from pipeline.runs.journal import NAME, Journal, place_of
from pipeline.tracking.pending import settings_for
from pipeline.tracking.store import Store
from pipeline.tracking.stored_run import RunSpec
from pipeline.tracking.tracker import Tracker
from stages.errors import UserError
from tests.pipeline.decide.test_inherited import all_overrides
from tests.pipeline.experiments import Patch, Printed, write_run
from tests.pipeline.tracking.journals import Tried

LOCAL = TrackingSettings()


@dataclass
class Listener:
    """A server that responds to every request with an error."""

    address: str
    heard: list[dict[str, str]]
    """The headers of each request."""


@pytest.fixture
def listener(monkeypatch: Patch) -> Iterator[Listener]:
    """Start a server in an environment with credentials for a different server."""

    heard: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(dict(self.headers))
            self.send_error(400)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", f"mine-{name}")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Listener(f"http://127.0.0.1:{server.server_port}", heard)
        server.shutdown()


def received(folder: Path, uri: str, **store: str | None) -> Path:
    """Return the folder of a run that was recorded on the server at `uri`, with an entry that the server lacks."""
    overrides = ["tracking=server", f"tracking.uri={uri}", "seed=3"]
    write_run(folder, "KILLED", overrides=overrides)
    named = {"kind": "server", "uri": uri, "target": None, "run_id": "1f", "name": "a", "experiment": "e", **store}
    lines = [{"store": named}, {"call": "tags", "given": {"values": {"a": "b"}}}]
    (folder / NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / ".lock").touch()
    return folder


@pytest.mark.parametrize("place", [None, "12-1700000000000000000"])
def test_an_address_that_only_a_folder_names_is_asked_for(
    place: str | None, listener: Listener, tmp_path: Path, capsys: Printed, monkeypatch: Patch
) -> None:
    folder = received(tmp_path / "runs" / "e" / "a", listener.address, place=place)
    for words in ([str(folder)], [str(folder), "--again"], []):
        assert sync.main([f"--outputs={tmp_path}", *words]) == 1
    fix = capsys.readouterr().err.splitlines()[0].partition("Try: ")[2]
    with pytest.raises(UserError, match=r"was recorded in .* belongs to another user"):
        settings_for(folder, LOCAL)
    for option in ("fork", "resume", "run"):
        with pytest.raises(UserError, match=r"tracking\.uri is not inherited"):
            all_overrides([f"{option}={folder}"])
        assert all_overrides([f"{option}={folder}", "tracking.uri=http://127.0.0.1:9"])[2:] == [
            "tracking=server",
            "seed=3",
        ]
    assert not listener.heard
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert sync.main(shlex.split(fix)[4:]) == 1
    assert any("Authorization" in headers for headers in listener.heard), "it is asked for, and typed"


def test_an_address_in_the_environment_or_the_configuration_is_trusted(
    listener: Listener, tmp_path: Path, monkeypatch: Patch
) -> None:
    folder = received(tmp_path / "a", listener.address)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{listener.address}/".replace("//", "//me:secret9@"))
    assert settings_for(folder, LOCAL).uri == listener.address
    assert "seed=3" in all_overrides([f"fork={folder}"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert settings_for(received(tmp_path / "b", "http://127.0.0.1:5000"), LOCAL).kind == "server"


def test_the_user_s_run_is_sent_and_a_copy_of_it_is_not(listener: Listener, tmp_path: Path) -> None:
    """The lock file of a folder that was copied, unpacked or received is not the one that its journal names."""
    folder = received(tmp_path / "a", listener.address)
    Journal(folder).begin(replace(Journal(folder).header, place=place_of(folder)))
    assert Journal(folder).is_own
    assert settings_for(folder, LOCAL).uri == listener.address
    assert "seed=3" in all_overrides([f"fork={folder}"])
    moved = folder.rename(tmp_path / "moved")
    assert settings_for(moved, LOCAL).uri == listener.address
    copy = shutil.copytree(moved, tmp_path / "copy")  # with the times of its files
    assert not Journal(copy).is_own
    (moved / ".lock").chmod(0o640)  # changes the time, as if a new file had the same inode
    assert not Journal(moved).is_own
    with pytest.raises(UserError, match=r"was recorded in .* belongs to another user"):
        settings_for(copy, LOCAL)


def test_a_run_notes_where_it_was_begun(outputs: Path) -> None:
    folder = outputs / "runs" / "e" / "a"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    Tracker(RunSpec(LOCAL, outputs, folder, "e", "a")).close()
    assert Journal(folder).is_own


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9/x", "https://evil/x", "mlflow-artifacts://evil/x", "file:///tmp/x", "/tmp/x"]
)
def test_a_received_database_sends_artifacts_nowhere(address: str, outputs: Path) -> None:
    """MLflow would send credentials to the addresses in the database, and write files to its folders."""
    Store(LOCAL, outputs).experiment_id(Store(LOCAL, outputs).client(), "e")
    with closing(sqlite3.connect(outputs / "mlflow.db")) as database, database:
        database.execute("UPDATE experiments SET artifact_location = ? WHERE name = 'e'", (address,))
    folder = outputs / "runs" / "e" / "a"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"your MLflow credentials|outside of"):
        Tried(RunSpec(LOCAL, outputs, folder, "e", "a"))


def test_an_endless_response_is_cut_off(tmp_path: Path, monkeypatch: Patch) -> None:
    """MLflow would keep all of it in memory."""
    sent: list[int] = []

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while len(sent) < 10_000:
                    sent.append(self.wfile.write(b" " * 2**16))

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr("pipeline.tracking.store.LONGEST_ANSWER", 10**6)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = TrackingSettings("server", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(MlflowException, match="does not end"):
            Store(settings, tmp_path).client().get_run("a")
        server.shutdown()
    assert sum(sent) < 2 * 10**7


def test_an_interpolation_in_an_address_sends_no_variable(listener: Listener, tmp_path: Path) -> None:
    folder = received(tmp_path / "a", f"{listener.address}/${{oc.env:MLFLOW_TRACKING_PASSWORD}}")
    assert sync.main([f"--outputs={tmp_path}", str(folder)]) == 1
    with pytest.raises(UserError, match="is not inherited"):
        all_overrides([f"fork={folder}"])
    assert not listener.heard
