"""An HTTP server for an exported model: MLflow's scoring server, on this machine only.

MLflow's server accepts pixels, columns and texts; `/images` is added for encoded images.
"""

import asyncio
import base64
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np

from pipeline.command_line.command import say
from pipeline.internals.mlflow import scoring_app
from pipeline.runs.summary import one_line
from pipeline.serving import models, series
from pipeline.serving.masks import MASK
from pipeline.serving.rows import arguments_of
from pipeline.serving.signatures import BYTES, accepts_columns, accepts_windows
from pipeline.system import environment
from pipeline.system.machine import HOST
from pipeline.tracking.params import EXAMPLES
from stages.errors import UserError, printable
from stages.features.drift import LEAST, Drift

IMAGES = "/images"
"""The path for encoded images."""

END_SECONDS = 5
"""Grace period, in seconds, for open requests when the server stops."""

MAX_BYTES = 2**28
"""Maximum size of a request's body, in bytes."""

CHUNK_SECONDS = 0.25
"""Target time, in seconds, for one part of a request's images; between parts, the server checks for the client."""

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Host names of requests from this machine."""

TYPES = ("application/", "text/csv", "image/")
"""Prefixes of the accepted content types. A page of another site cannot send them without permission, unlike
`text/plain`, forms or no type (https://fetch.spec.whatwg.org/#cors-safelisted-request-header)."""

FORM = "application/x-www-form-urlencoded"

_is_over: ContextVar[Event] = ContextVar("is_over")
"""Is set when the request of the current thread is over: it took too long, or the client disconnected."""


def serve(name: str, folder: Path, port: int, hosts: Sequence[str] = ()) -> None:
    """Print the address and example requests, and serve until the process is interrupted.

    Args:
        name: The model, as the user named it.
        folder: The SavedModel.
        port: The port of this machine.
        hosts: Host names that requests may use, in addition to those of this machine.
    """
    app = build_app(folder, hosts)
    import uvicorn

    address = f"http://{HOST}:{port}"
    lines = [f"serving {name} at {address} (press Ctrl-C to stop)"]
    takes_images = any(route.path == IMAGES for route in app.routes)
    print(*lines, *requests(address, folder, takes_images), sep="\n", flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=END_SECONDS)


def requests(address: str, folder: Path, takes_images: bool) -> list[str]:
    """Return commands that send example requests: an image, the stored example, and the rows of a CSV file.

    Args:
        address: The address of the server.
        folder: The SavedModel, whose folder may contain an example of its input.
        takes_images: Whether the server accepts encoded images.
    """
    lines = []
    if takes_images:
        lines.append(f"an image    curl {address}{IMAGES} -H 'Content-Type: image/png' --data-binary @image.png")
    for example in [path for name in EXAMPLES if (path := folder.parent / name).is_file()][:1]:
        body = f"-H 'Content-Type: application/json' --data-binary {shlex.quote(f'@{example}')}"
        lines.append(f"an example  curl {address}/invocations {body}")
        if isinstance(json.loads(example.read_text()).get("inputs"), dict):  # columns by name
            lines.append(f"a CSV file  curl {address}/invocations -H 'Content-Type: text/csv' --data-binary @rows.csv")
    return lines


def build_app(folder: Path, hosts: Sequence[str] = ()) -> Any:
    """Return the ASGI application that serves the SavedModel in `folder`.

    POST /invocations accepts pixels, columns or texts, as MLflow's scoring server does, and returns the predictions.
    Images among other columns are JPEG, PNG, BMP, GIF or WebP in base64.
    POST /images exists if the model accepts encoded images. It accepts one JPEG, PNG, BMP, GIF or WebP, or JSON
    {"images": [<base64>, …]}, and returns class, score and probabilities of each, or its mask.
    GET /ping returns 200 once the model is loaded.

    Args:
        folder: The SavedModel.
        hosts: Host names that requests may use, in addition to those of this machine.
    """
    loaded = models.load(folder)
    watch = Watch(models.drift_of(loaded))
    with environment.quiet_stderr():
        app = scoring_app(predictor(loaded, watch), _texts, one_line)
    if BYTES in loaded.signatures and not accepts_columns(loaded):
        _take_images(app, models.encoded_function(loaded), watch)
    app.add_middleware(Guard, names=(*OWN_NAMES, *hosts))
    return app


class Guard:
    """ASGI middleware that refuses large requests and requests from other sites, and stops work on ended requests."""

    def __init__(self, app: Any, names: Sequence[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if (refusal := self._refusal(scope)) is not None:
            await _respond(send, *refusal)
            return
        event, size, has_begun = Event(), 0, False
        token = _is_over.set(event)

        async def receive_limited() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or size > MAX_BYTES:
                event.set()
                return {"type": "http.disconnect"}
            return message

        async def send_watched(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                event.set()  # after a timeout, MLflow's middleware responds while the work is still running

        try:
            await self._app(scope, receive_limited, send_watched)
        except Exception as error:
            if type(error).__name__ != "ClientDisconnect":
                raise
            if size > MAX_BYTES and not has_begun:
                await _respond(send, 413, f"the request body has more than {MAX_BYTES:,} bytes")
            else:
                print(
                    f"{scope['method']} {printable(scope['path'])}: the client disconnected",
                    file=sys.stderr,
                    flush=True,
                )
        finally:
            event.set()
            _is_over.reset(token)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return the status and the reason if a request is refused before it is read; None if it is accepted."""
        headers = [(name.lower(), value.decode("latin-1").strip()) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or re.sub(r":\d*$", "", hosts[0]).lower() not in self._names:
            return 400, "this server only accepts requests for this machine; --allow-host=<name> allows another name"
        if scope["method"] == "POST":
            types = [value.lower() for name, value in headers if name == b"content-type"]
            if len(types) != 1 or not types[0].startswith(TYPES) or types[0].startswith(FORM):
                return 415, f"Content-Type: {types or None}: expected the type of JSON, CSV, Parquet or an image"
        lengths = [value for name, value in headers if name == b"content-length"]
        if any(len(value) > 18 or (value.isdecimal() and int(value) > MAX_BYTES) for value in lengths):
            return 413, f"the request body has more than {MAX_BYTES:,} bytes"
        return None


async def _respond(send: Any, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def predictor(loaded: Any, watch: "Watch") -> Callable[[Any], Any]:
    """Return a function from pixels or columns to predictions; it reads columns like `python -m pipeline predict`.

    Texts in predictions are Python strings, because MLflow would encode TensorFlow's bytes in base64.

    Args:
        loaded: The SavedModel.
        watch: Counts the rows.
    """
    settings, is_table = models.reading_settings(loaded), accepts_columns(loaded)
    is_forecast = accepts_windows(loaded)
    pyarrow = import_module("pyarrow")
    exception = import_module("mlflow.exceptions").MlflowException.invalid_parameter_value
    wrong = (
        UserError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NotImplementedError,
        RecursionError, import_module("tensorflow").errors.OpError,
    )  # fmt: skip

    def predict(data: Any) -> Any:
        if _is_over.get(Event()).is_set():
            raise exception("the request has already ended")
        try:
            if is_forecast and hasattr(data, "items") and series.has_rows(loaded, data):
                return series.forecasts_of_request(loaded, settings, watch.drift, data).to_pylist()
            arguments = arguments_of(loaded, settings, watch.drift, data)
            outputs = (models.prediction_columns if is_table else models.outputs_of)(loaded, arguments)
        except wrong as error:  # columns of different lengths, or none; images of a different shape
            raise exception(str(error)) from error
        watch.count(lambda: watch.drift.add(arguments))
        if is_table:
            return pyarrow.table(outputs).to_pylist()
        return outputs[MASK] if MASK in outputs else max(outputs.values(), key=np.ndim)

    return predict


def _texts(csv_input: Any) -> Any:
    """Return an open CSV file as a data frame of texts."""
    try:
        return import_module("pandas").read_csv(csv_input, dtype=str, keep_default_na=False)
    except ValueError as error:  # includes the errors of pandas
        exception = import_module("mlflow.exceptions").MlflowException.invalid_parameter_value
        raise exception(f"the CSV cannot be read ({str(error).strip()})") from error


class Watch:
    """Reports columns of the requests that have drifted from the training data."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self._lock = Lock()
        self._next = LEAST

    def count(self, add: Callable[[], None]) -> None:
        """Count rows by calling `add`; print which columns have drifted each time the number of rows has doubled."""
        with self._lock:
            add()
            if self.drift.rows < self._next:
                return
            self._next = 2 * self.drift.rows
            for line in self.drift.sentences(f"the {self.drift.rows:,} examples of the requests"):
                say(line)


def _take_images(app: Any, classify: Any, watch: Watch) -> None:
    """Add `/images` to the application."""
    from fastapi import HTTPException, Request

    @app.post(IMAGES)
    async def images(request: Request) -> dict[str, Any]:
        body = await request.body()
        encoded = [body]
        try:
            if request.headers.get("content-type", "").startswith("application/json"):
                texts = ["".join(image.split()) for image in json.loads(body)["images"]]
                encoded = [base64.b64decode(text, validate=True) for text in texts]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise HTTPException(400, f'expected {{"images": [<base64>, ...]}} ({error!r})') from error
        answers = await asyncio.to_thread(_scores, classify, encoded)
        if len(answers) < len(encoded):
            raise HTTPException(504, "the request has already ended")
        wrong = [f"image {index}: {answer}" for index, answer in enumerate(answers) if isinstance(answer, str)]
        if wrong or not answers:
            raise HTTPException(400, "; ".join(wrong) or "the request contains no image")
        await asyncio.to_thread(watch.count, lambda: watch.drift.add_encoded(encoded))
        return {"predictions": answers}


def _scores(classify: Any, encoded: Sequence[bytes]) -> list[dict[str, Any] | str]:
    """Return the predictions for images as `models.scores` does, or only the first ones if the request is over.

    Images are processed in parts that take a fraction of a second; large images are processed one by one.
    """
    answers: list[dict[str, Any] | str] = []
    size, is_over = 1, _is_over.get(Event())
    while len(answers) < len(encoded) and not is_over.is_set():
        began = time.monotonic()
        answers += models.scores(classify, list(encoded[len(answers) : len(answers) + size]))
        size = 2 * size if time.monotonic() - began < CHUNK_SECONDS else max(size // 2, 1)
    return answers
