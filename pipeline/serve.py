"""`python -m pipeline.serve`: a model over HTTP by MLflow's scoring server, on this machine alone.

That server takes pixels, columns and texts; `/images` is added for encoded images.
"""

import argparse
import asyncio
import base64
import json
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from pipeline import serving
from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.serving import BYTES
from pipeline.system import environment
from pipeline.system.machine import HOST, free_port
from pipeline.tracking.params import SERVING_EXAMPLE
from stages.errors import UserError
from stages.exporters.reload import import_text_operations
from stages.features.drift import LEAST, Drift
from stages.features.kinds import IMAGES as IMAGES_OF

IMAGES = "/images"
"""The path that takes encoded images."""

FIRST_PORT = 5001
END_SECONDS = 5
"""Seconds that requests may take to end once the server is told to."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code."""
    parser = command_parser("serve", __doc__)
    parser.add_argument("model", metavar="RUN|MODEL", help="a run, by folder or id; models:/<name>@<alias>")
    parser.add_argument("--port", type=int, help=f"{FIRST_PORT}, or the next that is free, if left out")
    parser.add_argument("--tracking-uri", help="the store; that of the run, or that in the outputs, if left out")
    options = parser.parse_args(arguments)
    environment.prepare()
    return exit_code(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> int:
    port = free_port(options.port, FIRST_PORT)
    folder = serving.mlflow_model(options.model, options.tracking_uri, options.outputs)
    app = build_app(folder)
    import uvicorn

    address = f"http://{HOST}:{port}"
    lines = [f"{options.model} at {address}; Ctrl-C ends it"]
    if any(route.path == IMAGES for route in app.routes):
        lines.append(f"an image    curl {address}{IMAGES} -H 'Content-Type: image/png' --data-binary @image.png")
    example = folder / SERVING_EXAMPLE
    if example.is_file():
        body = f"-H 'Content-Type: application/json' --data-binary {shlex.quote(f'@{example}')}"
        lines.append(f"an example  curl {address}/invocations {body}")
    print(*lines, sep="\n", flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=END_SECONDS)
    return 0


def build_app(folder: Path) -> Any:
    """Return the application that serves the MLflow model in `folder`, as ASGI.

    POST /invocations: pixels, columns or texts, as MLflow's scoring server takes them; the model's answers.
    POST /images, where the model takes encoded images: one JPEG, PNG, BMP, GIF or WebP, or JSON {"images":
        [<base64>, …]}; class, score and probabilities of each.
    GET /ping: 200 once the model is loaded.
    """
    with environment.quiet_stderr():
        import_text_operations()
        model = import_module("mlflow.pyfunc").load_model(str(folder))
        loaded = model.get_raw_model()
        watch = Watch(serving.drift_of(loaded))
        server: Any = import_module("mlflow.pyfunc.scoring_server")
        asked: Any = model
        if serving.takes_columns(loaded):  # MLflow would cast values by the model's schema: 2.5 to 2
            server.parse_csv_input = _texts
            asked = SimpleNamespace(metadata=SimpleNamespace(get_input_schema=lambda: None))
        asked.predict = answering(model.predict, loaded, watch)
        app = server.init(asked)
    if BYTES in loaded.signatures:
        _take_images(app, serving.encoded_function(loaded), watch)
    return app


def answering(predict: Callable[..., Any], loaded: Any, watch: "Watch") -> Callable[..., Any]:
    """Return `predict`, which reads columns as `pipeline.predict` reads tables, and whose rows `watch` counts.

    It answers in texts: MLflow would send TensorFlow's bytes in base64.
    """
    settings = serving.as_trained(loaded) if serving.takes_columns(loaded) else None
    exception = import_module("mlflow.exceptions").MlflowException.invalid_parameter_value

    def called(data: Any, *others: Any, **named: Any) -> Any:
        if settings is None:
            answered = predict(data, *others, **named)  # refuses what the model does not take, which counts nowhere
            if getattr(data, "ndim", 0) == 4:
                watch.count(lambda: watch.drift.add({IMAGES_OF: data}))
            return answered
        try:
            taken = serving.as_taken(loaded, settings, watch.drift, data)
        except (UserError, ValueError, TypeError) as error:  # of columns of several lengths, or none
            raise exception(str(error)) from error
        given = {name: list(values) if values.ndim > 1 else values for name, values in taken.items()}
        answered = predict(import_module("pandas").DataFrame(given), *others, **named)
        watch.count(lambda: watch.drift.add(taken))
        return answered.map(lambda value: value.decode() if isinstance(value, bytes) else value)

    return called


def _texts(csv_input: Any, schema: Any = None) -> Any:
    """Return a CSV as a data frame of texts, in place of MLflow's function."""
    try:
        return import_module("pandas").read_csv(csv_input, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' errors are among them
        exception = import_module("mlflow.exceptions").MlflowException.invalid_parameter_value
        raise exception(f"the CSV cannot be read ({str(error).strip()})") from error


class Watch:
    """Prints a line where what is asked has moved from what the model was trained on, as columns are added to it."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self._lock = Lock()
        self._next = LEAST

    def count(self, add: Callable[[], None]) -> None:
        """Count, and print which columns have moved, if any; rows double from one look to the next."""
        with self._lock:
            add()
            if self.drift.rows < self._next:
                return
            self._next = 2 * self.drift.rows
            for line in self.drift.sentences(f"the {self.drift.rows:,} examples asked about"):
                print(line, flush=True)


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
        answers = await asyncio.to_thread(serving.scores, classify, encoded)
        wrong = [f"image {index}: {answer}" for index, answer in enumerate(answers) if isinstance(answer, str)]
        if wrong or not answers:
            raise HTTPException(400, "; ".join(wrong) or "there is no image in the request")
        await asyncio.to_thread(watch.count, lambda: watch.drift.add_encoded(encoded))
        return {"predictions": answers}


if __name__ == "__main__":
    run_command(main)
