"""The HTTP application: MLflow's scoring server for pixels, columns and texts, and `/images` for encoded images."""

import asyncio
import base64
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.serving.models import BYTES, encoded_function, scores
from pipeline.system.environment import quiet_stderr

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
        model = import_module("mlflow.pyfunc").load_model(str(folder))
        app = import_module("mlflow.pyfunc.scoring_server").init(model)
    loaded = model.get_raw_model()
    if BYTES in loaded.signatures:
        _take_images(app, encoded_function(loaded))
    return app


def _take_images(app: Any, classify: Any) -> None:
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
        return {"predictions": answers}
