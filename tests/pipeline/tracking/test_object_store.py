"""Models and files of runs in an object store: S3's protocol, served on loopback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests import commands
from tests.pipeline.experiments import QUICK
from tests.servers import free_port, mlflow_server, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.engines]

SECRET = "of-the-object-store-0816"


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An object store with the bucket `runs`, where the variables of this process lead; yields a client of it."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto")
    address = f"http://127.0.0.1:{free_port()}"
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "MLFLOW_S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "of-the-test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(f"{address}/moto-api/data.json", server)
        client = boto3.client("s3", endpoint_url=address)
        client.create_bucket(Bucket="runs")
        yield client
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)


def test_models_and_files_reach_an_object_store_whose_keys_only_the_server_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    with object_store(monkeypatch) as store:
        with mlflow_server(f"sqlite:///{tmp_path}/server.db", "s3://runs/kept") as address:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MLFLOW_S3_ENDPOINT_URL"):
                monkeypatch.delenv(name)
            command = ["tracking=server", f"tracking.uri={address}", f"outputs={outputs}"]
            done = commands.run(*QUICK, "pipeline.inspect=null", *command, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            client = MlflowClient(address)
            [experiment] = [found for found in client.search_experiments() if found.name == "digits_cnn"]
            [run] = client.search_runs([experiment.experiment_id])
            assert run.info.status == "FINISHED"
            listed = {entry.path for entry in client.list_artifacts(run.info.run_id)}
            fetched = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
        keys = {entry["Key"] for entry in store.list_objects_v2(Bucket="runs")["Contents"]}
        [folder] = outputs.glob("runs/*/*")
        assert Path(fetched).read_bytes() == (folder / "config.yaml").read_bytes()
        assert {f"kept/{experiment.experiment_id}/{run.info.run_id}/artifacts/{path}" for path in listed} & keys
        assert any(key.endswith("saved_model.pb") for key in keys), keys
        written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert SECRET.encode() not in written
