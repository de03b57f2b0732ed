"""A served model returns the predictions of the exported one; wrong requests get an error, and the server continues."""

import asyncio
import base64
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.serving.server import OWN_NAMES, Guard, _is_over, _scores, requests
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
    """The address of a server and its process id."""
    with serving(run, outputs) as address_and_process:
        yield address_and_process


@contextmanager
def serving(run: Path, outputs: Path) -> Iterator[tuple[str, int]]:
    """Serve a run; yield the address of the server and its process id."""
    with (outputs / "served.txt").open("w+") as out:
        command = commands.start("serve", str(run), f"--outputs={outputs}", stdout=out, stderr=out)
        log = outputs / "served.txt"
        printed = r"at (http://127\.0\.0\.1:\d+) "
        address = until(lambda: re.search(printed, log.read_text()) or command.poll() is not None, 120)
        assert isinstance(address, re.Match), log.read_text()
        wait_for(f"{address[1]}/ping", command)
        yield address[1], command.pid
        command.terminate()
        assert command.wait(30) == 128 + signal.SIGTERM


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


def test_pixels_and_encoded_images_get_the_predictions_of_the_export(served: tuple[str, int], run: Path) -> None:
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


def test_models_of_columns_show_how_to_send_a_csv_file(tmp_path: Path) -> None:
    """A model of images has an array as its example, and does not show this."""
    example = tmp_path / "input_example.json"
    for inputs, count in ({"age": [59.0]}, 2), ([[0.0]], 1):
        example.write_text(json.dumps({"inputs": inputs}))
        lines = requests("http://127.0.0.1:5001", tmp_path / "saved_model", takes_images=False)
        assert len(lines) == count
        assert ("--data-binary @rows.csv" in lines[-1]) is (count == 2)


GOOD = base64.b64encode(encoded()).decode()
WRONG: dict[str, tuple[str, str, bytes, int]] = {
    "pixels of another shape": ("/invocations", JSON, json.dumps({"instances": [[[0.0]]]}).encode(), 400),
    "broken JSON": ("/invocations", JSON, b"{", 400), "no image": ("/images", JSON, b'{"images": []}', 400),
    "another content type": ("/invocations", "text/html", b"<p>", 415),
    "half a JPEG": ("/images", "image/jpeg", encoded(0, "JPEG")[:200], 400),
    "one of two images damaged": ("/images", JSON, json.dumps({"images": [GOOD, "AAAA"]}).encode(), 400),
    "text that is not base64": ("/images", JSON, b'{"images": ["***"]}', 400),
    "JSON of 100,000 brackets": ("/images", JSON, b"[" * 100_000, 400),
    "pixels of 100,000 brackets": ("/invocations", JSON, b'{"instances": ' + b"[" * 100_000, 400),
    "a number of 5,000 digits": ("/invocations", JSON, b'{"instances": [' + b"9" * 5000 + b"]}", 400),
    "such a number in a list of images": ("/images", JSON, b'{"images": [' + b"9" * 5000 + b"]}", 400),
    "JSON that is not UTF-8": ("/invocations", JSON, b'{"instances": ["\xff"]}', 400),
    "NaN in place of pixels": ("/invocations", JSON, b'{"instances": NaN}', 400),
    "a list": ("/invocations", JSON, b"[1]", 400), "null": ("/invocations", JSON, b"null", 400),
    "instances that are a text": ("/invocations", JSON, b'{"instances": "x"}', 400),
    "a mapping of columns": ("/invocations", JSON, b'{"dataframe_split": {"columns": 3}}', 400),
    "records that are none": ("/invocations", JSON, b'{"dataframe_records": [1, null]}', 400),
    "messages": ("/invocations", JSON, b'{"messages": [{"role": 3}]}', 400),
    "images by name": ("/images", JSON, b'{"images": {"a": 1}}', 400),
    "no list": ("/images", JSON, b'{"images": 3}', 400),
    "a CSV that is not UTF-8": ("/invocations", "text/csv", b"a,b\n\xff,1\n", 400),
    "a Parquet file that is none": ("/invocations", "application/vnd.apache.parquet", b"PAR1", 400),
    "text": ("/images", "text/plain", encoded(), 415), "a form": ("/images", "multipart/form-data", encoded(), 415),
    "JSON as text": ("/invocations", "text/plain", b"{}", 415),
    "curl's own type": ("/images", "application/x-www-form-urlencoded", encoded(), 415),
}  # fmt: skip
"""Wrong requests: path, content type, body and expected status."""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_are_refused_and_the_server_continues(name: str, served: tuple[str, int]) -> None:
    path, content_type, body, expected = WRONG[name]
    status, answer = post(served[0], body, content_type, path)
    assert status == expected, answer
    assert post(served[0], encoded(), "image/png", "/images")[0] == 200


def raw(address: str, request: bytes, closes: bool = False) -> bytes:
    """Send bytes, and return the beginning of the response; with `closes`, disconnect without waiting for it."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        return b"" if closes else connection.recv(100)


HEAD = b"POST /images HTTP/1.1\r\n%b\r\n"
UNUSUAL = {
    b"Host: evil.example\r\nContent-Type: image/png\r\n": b"400",
    b"Host: 127.0.0.1.evil.example:5001\r\n": b"400",
    b"Host: localhost\r\nHost: evil\r\nContent-Type: image/png\r\n": b"400",
    b"Content-Type: image/png\r\n": b"400",
    b"Host: localhost\r\nContent-Length: 0\r\n": b"415",
    b"Host: localhost:1\r\nContent-Type: \r\n": b"415",
    b"Host: localhost\r\nContent-Type: image/png\r\nContent-Length: -1\r\n": b"400",
    b"Host: localhost\r\nContent-Type: image/png\r\nContent-Length: 99999999999999999\r\n": b"413",
    b"Host: LOCALHOST\r\nContent-Type: image/png\r\nContent-Length: 0\r\n": b"400",
}
"""Headers of a POST, with the expected status."""


def test_unusual_requests_are_refused(served: tuple[str, int]) -> None:
    """Requests from another site by DNS rebinding, without a type or a length, or with other methods."""
    for headers, status in UNUSUAL.items():
        answer = raw(served[0], HEAD % headers)
        assert answer.split()[1] == status, (headers, answer)
    for method in (b"PUT", b"OPTIONS", b"HEAD", b"DELETE"):
        answer = raw(served[0], method + b" /images HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.split()[1] == b"405", answer
    for path in (b"/../etc/passwd", b"/%2e%2e/x", b"/images/..", b"/\x1b"):
        assert raw(served[0], b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n").split()[1] in (b"404", b"400")
    assert raw(served[0], b"GET /ping?x=%00 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n").split()[1] == b"200"


def test_an_aborted_upload_prints_one_line(served: tuple[str, int], outputs: Path) -> None:
    before = len((outputs / "served.txt").read_text())
    lengths = b"Content-Length: 5000", b"Transfer-Encoding: chunked"
    for length in lengths:
        head = HEAD % (b"Host: localhost\r\nContent-Type: image/png\r\n" + length + b"\r\n")
        raw(served[0], head + b"5\r\nabcde\r\n", closes=True)
    output = until(
        lambda: (text := (outputs / "served.txt").read_text()[before:]).count("disconnected\n") == 2 and text, 20
    )
    assert output == 2 * "POST /images: the client disconnected\n"
    assert post(served[0], encoded(), "image/png", "/images")[0] == 200


@pytest.mark.parametrize(("last", "expected"), [(2, 3), (99, 40)])
def test_work_ends_with_its_request(last: int, expected: int) -> None:
    """Images are processed one by one at first, and in growing parts as long as they are fast."""
    asked: list[int] = []
    over = Event()

    def classify(contents: tf.Tensor) -> dict[str, tf.Tensor]:
        asked.append(len(contents))
        if len(asked) == last:
            over.set()
        return {"score": tf.zeros(len(contents))}

    token = _is_over.set(over)
    assert len(_scores(classify, [encoded()] * 40)) == expected
    _is_over.reset(token)


def test_a_request_is_over_once_it_has_a_response_or_its_client_has_gone() -> None:
    """This holds even if the application is still running, as after MLflow's timeout."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        over = _is_over.get()
        assert not over.is_set()
        if scope["path"] == "/answered":
            await send({"type": "http.response.start", "status": 504, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await receive()
        assert over.is_set()
        ended.append(scope["path"])

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def sent(message: dict[str, Any]) -> None:
        pass

    ended: list[str] = []
    guard = Guard(app, OWN_NAMES)
    for path in ("/answered", "/gone"):
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", b"localhost")]}
        asyncio.run(guard(scope, gone, sent))
    assert ended == ["/answered", "/gone"]


def test_requests_may_use_an_allowed_host_name() -> None:
    guard = Guard(None, (*OWN_NAMES, "models.example"))
    for host, refused in ((b"models.example:443", False), (b"other.example", True), (b"localhost", False)):
        scope = {"method": "GET", "headers": [(b"Host", host)]}
        assert (guard._refusal(scope) is not None) == refused


def test_it_listens_only_on_loopback(served: tuple[str, int]) -> None:
    listening = [c for c in psutil.Process(served[1]).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_files_get_the_predictions_of_the_export(run: Path, outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(10))
    (tmp_path / "b.jpg").write_bytes(encoded(90, "JPEG"))
    (tmp_path / "c.png").write_bytes(b"none")
    exported = tf.saved_model.load(str(run / "export" / "saved_model"))
    expected = exported.signatures["serve_bytes"](tf.constant([encoded(10), encoded(90, "JPEG")]))
    done = commands.run("predict", run.name, str(tmp_path), "--json", f"--outputs={outputs}")
    assert done.returncode == 1
    assert re.search(r"^error: .*c\.png: the image cannot be decoded", done.stderr, re.MULTILINE)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["a.png", "b.jpg"]
    given = np.array([list(row["probabilities"].values()) for row in rows])
    assert np.abs(given - expected["probabilities"].numpy()).max() < 1e-6
