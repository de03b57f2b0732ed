"""`python -m pipeline serve`: serve an exported model over HTTP, on this machine only."""

import argparse

from pipeline.command_line.command import Command

FIRST_PORT = 5001


def _serve(options: argparse.Namespace) -> int:
    """Print the address and example requests, and serve until the process is interrupted."""
    from pipeline.serving.models import saved_model
    from pipeline.serving.server import serve
    from pipeline.system.machine import free_port

    port = free_port(options.port, FIRST_PORT)
    folder = saved_model(options.model, options.tracking_uri, options.outputs)
    serve(options.model, folder, port, options.allow_host)
    return 0


main = Command("serve", _serve, "Serve an exported model over HTTP, on this machine only.")
main.add_argument("model", metavar="RUN|MODEL", help="folder or id of a run, or models:/<name>@<alias>")
main.add_argument("--port", type=int, help=f"port (default: {FIRST_PORT}, or the next free one)")
main.add_argument(
    "--allow-host",
    action="append",
    default=[],
    metavar="NAME",
    help="also accept requests for this host name, as from a proxy; may be repeated",
)
main.add_argument("--tracking-uri", help="MLflow server of models:/… (default: the database in --outputs)")
