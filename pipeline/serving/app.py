"""The HTTP application: MLflow's scoring server for pixels, and `/images` for encoded images."""

import asyncio
import base64
import binascii
import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.serving.classification import encoded_function, scores
from pipeline.serving.limits import App, BodyLimit, PlainErrors
from pipeline.system.environment import quiet_stderr
from stages.data.convert import FORMATS

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

MOST_BYTES = 16 * 2**20
"""Bytes of a request, unless another limit is given."""

JSON = "application/json"
ENCODED = ("image/jpeg", "image/png", "image/bmp", "image/gif", "image/webp", "application/octet-stream")
"""Content types of one encoded image."""


class ScoredModel:
    """A pyfunc model for MLflow's scoring server that refuses what a network would answer with nonsense."""

    def __init__(self, model: "PyFuncModel") -> None:
        self._model = model
        self.metadata = model.metadata

    def predict(self, data: Any) -> Any:
        """Returns probabilities, float32 [N, classes].

        Raises:
            MlflowException: where there is no image, or a pixel is not a finite number.
        """
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

        pixels = np.asarray(data)
        if not pixels.size:
            raise MlflowException("there is no image in the request", INVALID_PARAMETER_VALUE)
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            raise MlflowException("a pixel is not a finite number", INVALID_PARAMETER_VALUE)
        return self._model.predict(data)


def build_app(folder: Path, most_bytes: int = MOST_BYTES) -> App:
    """Returns the application that serves the MLflow model in `folder`, as ASGI.

        POST /invocations: pixels, as MLflow's scoring server takes them; probabilities.
        POST /images: one JPEG, PNG, BMP, GIF or WebP, or JSON {"images": [<base64>, …]}; class, score and
            probabilities of each.
        GET /ping: 200 once the model is loaded.

    Args:
        most_bytes: of a request; larger ones are answered by 413.

    Raises:
        UserError: where the model does not take encoded images.
    """
    with quiet_stderr():
        pyfunc = import_module("mlflow.pyfunc")
        server = import_module("mlflow.pyfunc.scoring_server")
        model = pyfunc.load_model(str(folder))
    app = server.init(ScoredModel(model))
    classify = encoded_function(model.get_raw_model())
    from fastapi import Request, Response

    async def images(request: Request) -> Response:
        encoded = _encoded(request.headers["content-type"], await request.body())
        if isinstance(encoded, str):
            return Response(json.dumps({"error": encoded}), 415 if encoded.startswith("Content-Type") else 400)
        answer = await asyncio.to_thread(_classified, classify, encoded)
        if isinstance(answer, str):
            return Response(json.dumps({"error": answer}), 400)
        return Response(json.dumps({"predictions": answer}), media_type=JSON)

    app.add_api_route("/images", images, methods=["POST"])
    return PlainErrors(BodyLimit(app, most_bytes))


def _encoded(content_type: str, body: bytes) -> list[bytes] | str:
    """Returns the encoded images of a request, or what is wrong with it."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ENCODED:
        return [body] if body else "there is no image in the request"
    if kind != JSON:
        return f"Content-Type is {content_type}; expected {', '.join(ENCODED)} or {JSON}"
    try:
        values = json.loads(body)
        images = values["images"] if isinstance(values, dict) else None
        if not isinstance(images, list) or not images:
            return 'expected {"images": [<base64>, ...]} with at least one image'
        return [base64.b64decode(image, validate=True) for image in images]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        return f'expected {{"images": [<base64>, ...]}}: {type(error).__name__}: {error}'


def _classified(classify: Any, encoded: list[bytes]) -> list[dict[str, Any] | str] | str:
    """Returns class, score and probabilities of each image, or which of them cannot be decoded."""
    answers = scores(classify, encoded)
    invalid = [index for index, answer in enumerate(answers) if isinstance(answer, str)]
    if not invalid:
        return answers
    if len(encoded) == 1:
        return str(answers[0])
    return f"images {', '.join(map(str, invalid))} (counted from 0) cannot be decoded: {', '.join(FORMATS)} expected"
