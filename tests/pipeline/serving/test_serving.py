"""A served model answers as the exported one does, answers what is wrong with a request, and lives on."""

import base64
import io
import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.system.signals import until
from tests import commands
from tests.pipeline.experiments import QUICK, only_folder
from tests.servers import wait_for

pytestmark = pytest.mark.slow

JSON = "application/json"


@pytest.fixture(scope="module")
def outputs(module_outputs: Path) -> Path:
    commands.succeed(*QUICK, "pipeline.inspect=null", "pipeline.evaluate=null", f"outputs={module_outputs}")
    return module_outputs


@pytest.fixture(scope="module")
def run(outputs: Path) -> Path:
    return only_folder(outputs)


@pytest.fixture(scope="module")
def served(run: Path, outputs: Path) -> Iterator[tuple[str, int]]:
    """The address of a server, and its process."""
    with serving(run, outputs) as address_and_process:
        yield address_and_process


@contextmanager
def serving(run: Path, outputs: Path) -> Iterator[tuple[str, int]]:
    """Serves a run; returns the address of the server, and its process."""
    with (outputs / "served.txt").open("w+") as out:
        command = commands.start(str(run), f"--outputs={outputs}", module="pipeline.serve", stdout=out, stderr=out)
        told = outputs / "served.txt"
        printed = r"at (http://127\.0\.0\.1:\d+);"
        address = until(lambda: re.search(printed, told.read_text()) or command.poll() is not None, 120)
        assert isinstance(address, re.Match), told.read_text()
        wait_for(f"{address[1]}/ping", command)
        yield address[1], command.pid
        command.terminate()
        assert command.wait(30) == -signal.SIGTERM


def post(address: str, body: bytes, content_type: str, path: str = "/invocations") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address + path, body, {"Content-Type": content_type}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {"error": error.read().decode()}


def encoded(value: int = 100, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    pixels = (np.arange(32 * 24) % 256).astype(np.uint8).reshape(32, 24) // 2 + value
    Image.fromarray(pixels.astype(np.uint8)).save(file, form)
    return file.getvalue()


def test_pixels_and_encoded_images_are_answered_as_by_the_export(served: tuple[str, int], run: Path) -> None:
    address, _ = served
    exported = tf.saved_model.load(str(run / "export" / "saved_model"))
    images = np.random.default_rng(0).integers(0, 17, (3, 8, 8, 1)).astype(np.float32)
    status, answer = post(address, json.dumps({"instances": images.tolist()}).encode(), JSON)
    assert status == 200
    assert np.abs(np.array(answer["predictions"]) - exported(tf.constant(images)).numpy()).max() < 1e-6

    contents = [encoded(10), encoded(90, "JPEG")]
    expected = exported.signatures["serve_bytes"](tf.constant(contents))
    for content, row, name in zip(contents, expected["probabilities"], expected["class_name"], strict=True):
        status, answer = post(address, content, "image/png", "/images")
        assert status == 200
        [one] = answer["predictions"]
        assert one["class_name"] == name.numpy().decode()
        assert np.abs(np.array(one["probabilities"]) - row.numpy()).max() < 1e-6
    batch = json.dumps({"images": [base64.b64encode(content).decode() for content in contents]}).encode()
    status, answer = post(address, batch, JSON, "/images")
    assert status == 200
    scores = [one["score"] for one in answer["predictions"]]
    assert scores == pytest.approx(expected["score"].numpy().tolist(), abs=1e-6)


def test_the_printed_commands_work_as_they_are_pasted(served: tuple[str, int], outputs: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    (tmp_path / "image.png").write_bytes(encoded())
    lines = re.findall(r"^an (?:image|example) +(curl .*)$", (outputs / "served.txt").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(done.stdout)["predictions"], line


GOOD = base64.b64encode(encoded()).decode()
WRONG: dict[str, tuple[str, str, bytes, int]] = {
    "pixels of another shape": ("/invocations", JSON, json.dumps({"instances": [[[0.0]]]}).encode(), 400),
    "broken JSON": ("/invocations", JSON, b"{", 400), "no image": ("/images", JSON, b'{"images": []}', 400),
    "another content type": ("/invocations", "text/html", b"<p>", 415),
    "half a JPEG": ("/images", "image/jpeg", encoded(0, "JPEG")[:200], 400),
    "one of two images damaged": ("/images", JSON, json.dumps({"images": [GOOD, "AAAA"]}).encode(), 400),
    "text that is not base64": ("/images", JSON, b'{"images": ["***"]}', 400),
    "JSON of 100,000 brackets": ("/images", JSON, b"[" * 100_000, 400),
}  # fmt: skip
"""From what is wrong with a request to path, content type, body and status."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_are_refused_and_the_server_lives_on(name: str, served: tuple[str, int]) -> None:
    path, content_type, body, expected = WRONG[name]
    status, answer = post(served[0], body, content_type, path)
    assert status == expected, answer
    assert post(served[0], encoded(), "image/png", "/images")[0] == 200


def test_it_listens_on_loopback_alone(served: tuple[str, int]) -> None:
    listening = [c for c in psutil.Process(served[1]).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_files_are_classified_as_the_export_does_it(run: Path, outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(10))
    (tmp_path / "b.jpg").write_bytes(encoded(90, "JPEG"))
    (tmp_path / "c.png").write_bytes(b"none")
    exported = tf.saved_model.load(str(run / "export" / "saved_model"))
    expected = exported.signatures["serve_bytes"](tf.constant([encoded(10), encoded(90, "JPEG")]))
    done = commands.run(run.name, str(tmp_path), "--json", f"--outputs={outputs}", module="pipeline.predict")
    assert done.returncode == 1
    assert re.search(r"^error: .*c\.png: the image cannot be decoded", done.stderr, re.MULTILINE)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["a.png", "b.jpg"]
    given = np.array([list(row["probabilities"].values()) for row in rows])
    assert np.abs(given - expected["probabilities"].numpy()).max() < 1e-6
