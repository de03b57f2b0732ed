"""The HTTP application: MLflow's scoring server for pixels, and `/images` for encoded images."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.serving.models import encoded_function, scores
from pipeline.system.environment import quiet_stderr

MOST_BYTES = 16 * 2**20
"""Bytes of a request, unless another limit is given."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


def build_app(folder: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the application that serves the MLflow model in `folder`, as ASGI.

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
        model = import_module("mlflow.pyfunc").load_model(str(folder))
        app = import_module("mlflow.pyfunc.scoring_server").init(model)
    classify = encoded_function(model.get_raw_model())
    from fastapi import HTTPException, Request
    from fastapi.middleware import Middleware

    @app.post("/images")
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

    app.user_middleware.append(Middleware(BodyLimit, most=most_bytes))  # within MLflow's own, which hides its refusal
    return app


class BodyLimit:
    """Answers 413 to a body of more than `most` bytes, declared or not, which is not kept."""

    def __init__(self, app: Callable[..., Awaitable[None]], most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Message, receive: Receive, send: Callable[[Message], Awaitable[None]]) -> None:
        from fastapi import HTTPException

        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                while message.get("more_body"):  # a client that still sends would not see the answer
                    message = await receive()
                raise HTTPException(
                    413, f"the body is larger than {self._most / 2**20:g} MiB; send fewer images at once"
                )
            return message

        await self._app(scope, limited, send)
