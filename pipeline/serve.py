"""`python -m pipeline.serve`: an exported model over HTTP by MLflow's scoring server, on this machine alone.

That server takes pixels, columns and texts; `/images` is added for encoded images.
"""

import argparse
import asyncio
import base64
import json
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipeline import serving
from pipeline.command_line.command import Command, run_command
from pipeline.serving import BYTES
from pipeline.system import environment
from pipeline.system.machine import HOST, free_port
from pipeline.tracking.params import EXAMPLES
from stages.errors import UserError
from stages.features.drift import LEAST, Drift

IMAGES = "/images"
"""The path that takes encoded images."""

FIRST_PORT = 5001
END_SECONDS = 5
"""Seconds that requests may take to end once the server is told to."""


def _serve(options: argparse.Namespace) -> int:
    port = free_port(options.port, FIRST_PORT)
    folder = serving.saved_model(options.model, options.tracking_uri, options.outputs)
    app = build_app(folder)
    import uvicorn

    address = f"http://{HOST}:{port}"
    lines = [f"{options.model} at {address}; Ctrl-C ends it"]
    if any(route.path == IMAGES for route in app.routes):
        lines.append(f"an image    curl {address}{IMAGES} -H 'Content-Type: image/png' --data-binary @image.png")
    for example in [path for name in EXAMPLES if (path := folder.parent / name).is_file()][:1]:
        body = f"-H 'Content-Type: application/json' --data-binary {shlex.quote(f'@{example}')}"
        lines.append(f"an example  curl {address}/invocations {body}")
    print(*lines, sep="\n", flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=END_SECONDS)
    return 0


def build_app(folder: Path) -> Any:
    """Return the application that serves the SavedModel in `folder`, as ASGI.

    POST /invocations: pixels, columns or texts, as MLflow's scoring server takes them; the model's answers.
    POST /images, where the model takes encoded images: one JPEG, PNG, BMP, GIF or WebP, or JSON {"images":
        [<base64>, …]}; class, score and probabilities of each.
    GET /ping: 200 once the model is loaded.
    """
    loaded = serving.load(folder)
    watch = Watch(serving.drift_of(loaded))
    with environment.quiet_stderr():
        server: Any = import_module("mlflow.pyfunc.scoring_server")
    server.parse_csv_input = _texts
    no_schema = SimpleNamespace(get_input_schema=lambda: None)  # by which MLflow would cast values: 2.5 to 2
    app = server.init(SimpleNamespace(metadata=no_schema, predict=answering(loaded, watch)))
    if BYTES in loaded.signatures:
        _take_images(app, serving.encoded_function(loaded), watch)
    return app


def answering(loaded: Any, watch: "Watch") -> Callable[[Any], Any]:
    """Return a function from pixels, or from columns as `pipeline.predict` reads tables, to the model's answers.

    `watch` counts the rows. Answers are in texts: MLflow would send TensorFlow's bytes in base64.
    """
    settings, takes_columns = serving.as_trained(loaded), serving.takes_columns(loaded)
    pyarrow = import_module("pyarrow")
    exception = import_module("mlflow.exceptions").MlflowException.invalid_parameter_value
    wrong = (UserError, ValueError, TypeError, import_module("tensorflow").errors.OpError)

    def predict(data: Any) -> Any:
        try:
            taken = serving.as_taken(loaded, settings, watch.drift, data)
            answers = serving.answered(loaded, taken) if takes_columns else serving.answer(loaded, taken)
        except wrong as error:  # of columns of several lengths, or none; of images of another shape
            raise exception(str(error)) from error
        watch.count(lambda: watch.drift.add(taken))
        return pyarrow.table(answers).to_pylist() if takes_columns else max(answers.values(), key=np.ndim)

    return predict


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


main = Command("serve", _serve, __doc__)
main.add_argument("model", metavar="RUN|MODEL", help="a run, by folder or id; models:/<name>@<alias>")
main.add_argument("--port", type=int, help=f"{FIRST_PORT}, or the next that is free, if left out")
main.add_argument("--tracking-uri", help="the store of models:/…; that in the outputs, if left out")

if __name__ == "__main__":
    run_command(main)
