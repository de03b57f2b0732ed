"""`python -m pipeline sync`: send the pending records of runs and sweeps to MLflow."""

import argparse

from pipeline.command_line.command import Command

DESCRIPTION = """Send pending records of runs and sweeps to MLflow.

Records are pending if the MLflow server was not available, or if the process of a run died. A run that was sent
completely is sent again only if you name it or use --again, so a run that you deleted in MLflow stays deleted."""


def _sync(options: argparse.Namespace) -> int:
    """Return 0 if everything has been sent, else 1."""
    from pipeline.sweep.sync import send_all

    return 1 if send_all(options.folder, options.outputs, options.uri, options.again) else 0


main = Command("sync", _sync, DESCRIPTION)
main.add_argument("folder", nargs="*", help="folders of runs or sweeps (default: all)")
main.add_argument(
    "--uri", help="address of the MLflow server, if it needs a user name or password, which are never stored"
)
main.add_argument("--again", action="store_true", help="send all records, for example to a new or restored database")
