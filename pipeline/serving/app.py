"""The HTTP application: MLflow's scoring server for pixels, columns and texts, and `/images` for encoded images."""

import asyncio
import base64
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from pipeline.serving.models import BYTES, drift_of, encoded_function, scores
from pipeline.system.environment import quiet_stderr
from stages.exporters.reload import import_text_operations
from stages.features.drift import LEAST, Drift
from stages.features.kinds import IMAGES as IMAGES_OF

IMAGES = "/images"
"""The path that takes encoded images."""


def build_app(folder: Path) -> Any:
    """Return the application that serves the MLflow model in `folder`, as ASGI.

    POST /invocations: pixels, columns or texts, as MLflow's scoring server takes them; the model's answers.
    POST /images, where the model takes encoded images: one JPEG, PNG, BMP, GIF or WebP, or JSON {"images":
        [<base64>, …]}; class, score and probabilities of each.
    GET /ping: 200 once the model is loaded.
    """
    with quiet_stderr():
        import_text_operations()
        model = import_module("mlflow.pyfunc").load_model(str(folder))
        loaded = model.get_raw_model()
        watch = Watch(drift_of(loaded))
        model.predict = watch.counting(model.predict)
        app = import_module("mlflow.pyfunc.scoring_server").init(model)
    if BYTES in loaded.signatures:
        _take_images(app, encoded_function(loaded), watch)
    return app


class Watch:
    """Prints a line where what is asked has moved from what the model was trained on, as columns are added to it."""

    def __init__(self, drift: Drift) -> None:
        self.drift = drift
        self._lock = Lock()
        self._next = LEAST
        self._told: set[str] = set()

    def counting(self, predict: Callable[..., Any]) -> Callable[..., Any]:
        """Return `predict`, which counts the rows of data frames and the images that it is given."""

        def counted(data: Any, *others: Any, **named: Any) -> Any:
            is_frame = hasattr(data, "columns")
            given = {name: np.asarray(data[name]) for name in data.columns} if is_frame else {IMAGES_OF: data}
            answered = predict(data, *others, **named)  # refuses what the model does not take, which counts nowhere
            if is_frame or getattr(data, "ndim", 0) == 4:
                self.count(lambda: self.drift.add(given))
            return answered

        return counted

    def count(self, add: Callable[[], None]) -> None:
        """Count, and print a line where other columns have moved than before; rows double from one look to the next."""
        with self._lock:
            add()
            if self.drift.rows < self._next:
                return
            self._next = 2 * self.drift.rows
            moved = set(self.drift.moved())
            if moved - self._told:
                print(*self.drift.sentences(f"the {self.drift.rows:,} examples asked about"), flush=True)
                self._told |= moved


def _take_images(app: Any, classify: Any, watch: Watch) -> None:
    """Add `/images` to the application."""
    from fastapi import HTTPException, Request

    @app.post(IMAGES)
    async def images(request: Request) -> dict[str, Any]:
        body = await request.body()
        encoded = [body]
        try:
            if request.headers.get("content-type", "").startswith("application/json"):
                encoded = [base64.b64decode(image, validate=True) for image in json.loads(body)["images"]]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise HTTPException(400, f'expected {{"images": [<base64>, ...]}} ({error!r})') from error
        answers = await asyncio.to_thread(scores, classify, encoded)
        wrong = [f"image {index}: {answer}" for index, answer in enumerate(answers) if isinstance(answer, str)]
        if wrong or not answers:
            raise HTTPException(400, "; ".join(wrong) or "there is no image in the request")
        await asyncio.to_thread(watch.count, lambda: watch.drift.add_encoded(encoded))
        return {"predictions": answers}
