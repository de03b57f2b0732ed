"""Limits of requests, which MLflow's scoring server does not have, and errors in one line."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


DRAINED_BYTES = 2**28
"""Bytes of a refused body that are read and thrown away: a client that still sends would not see the answer."""


class BodyLimit:
    """Answers 413 to a body of more than `most` bytes, declared or not, and keeps none; 415 where it has no type."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        parts = await self._parts(receive, int(declared) if declared.isdigit() else self._most + 1)
        if parts and parts[-1]["type"] == "http.disconnect":  # within the body: there is nobody to answer
            return
        if parts is None:
            line = f"the body is larger than {self._most / 2**20:g} MiB; send fewer images at once"
            await respond(send, 413, line)
        elif not headers.get(b"content-type"):
            await respond(send, 415, "the request has no Content-Type: image/jpeg, image/png or application/json")
        else:
            await self._app(scope, _replay(parts, receive), send)

    async def _parts(self, receive: Receive, declared: int) -> list[Message] | None:
        """Returns the messages of the body, or None where it is too large."""
        parts: list[Message] = []
        seen = 0
        more = True
        while more and seen < DRAINED_BYTES:
            message = await receive()
            seen += len(message.get("body", b""))
            more = message.get("more_body", False)
            parts.append(message)
            if max(seen, declared) > self._most:
                parts.clear()
        return None if max(seen, declared) > self._most else parts


def _replay(parts: list[Message], receive: Receive) -> Receive:
    """Returns a function that returns `parts`, then what `receive` does."""

    async def replayed() -> Message:
        return parts.pop(0) if parts else await receive()

    return replayed


@dataclass
class _Answer:
    """An answer on its way: sent as it comes, or kept where it is an error."""

    send: Send
    status: int = 200
    body: bytes = b""

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if not self.is_error:
            await self.send(message)
        else:
            self.body += message.get("body", b"")


class PlainErrors:
    """Makes every error one line under `error`, and here: no traceback, which would show this machine's folders."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            await self._app(scope, receive, answer.take)
        except asyncio.CancelledError:  # the server ends before the request does
            return
        except RecursionError:
            answer = _Answer(send, 400, b"the JSON is nested too deeply")
        except Exception as error:
            if not answer.is_error:  # part of the answer may be sent
                raise
            print(f"error: {scope['path']}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if answer.is_error:
            await respond(send, answer.status, _line(answer.body))


async def respond(send: Send, status: int, line: str) -> None:
    """Sends an error as JSON: `{"error": line}`."""
    body = json.dumps({"error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _line(body: bytes) -> str:
    """Returns the reason in the body of an error: of MLflow's, what comes after the data that it repeats."""
    text = body.decode(errors="replace")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if isinstance(values, dict):
        text = str(values.get("error") or values.get("message") or values.get("detail") or text)
    return " ".join(text.rpartition("Error: ")[2].split())[:500]
