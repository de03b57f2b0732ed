"""`python -m pipeline.serve`: a model over HTTP by MLflow's scoring server, on this machine alone."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from pipeline.command_line.command import command_parser, exit_code, run_command
from pipeline.serving.app import IMAGES, build_app
from pipeline.serving.models import mlflow_model
from pipeline.system import environment
from pipeline.system.machine import HOST, free_port
from pipeline.tracking.params import SERVING_EXAMPLE

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
    folder = mlflow_model(options.model, options.tracking_uri, options.outputs)
    app = build_app(folder)
    import uvicorn

    takes_images = any(route.path == IMAGES for route in app.routes)
    print(_how_to_use(options.model, folder, port, takes_images), flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=END_SECONDS)
    return 0


def _how_to_use(model: str, folder: Path, port: int, takes_images: bool) -> str:
    """Returns commands that work as they are pasted; one sends the example that the model has with it."""
    address = f"http://{HOST}:{port}"
    lines = [f"{model} at {address}; Ctrl-C ends it"]
    if takes_images:
        lines.append(f"an image    curl {address}{IMAGES} -H 'Content-Type: image/png' --data-binary @image.png")
    example = folder / SERVING_EXAMPLE
    if example.is_file():
        body = shlex.quote(f"@{example}")
        kind = "pixels    " if takes_images else "an example"
        lines.append(f"{kind}  curl {address}/invocations -H 'Content-Type: application/json' --data-binary {body}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
