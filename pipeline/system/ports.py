"""Ports on this machine's loopback interface."""

import socket
from contextlib import closing, suppress

from stages.errors import UserError

HOST = "127.0.0.1"


def free_port(port: int | None, first: int) -> int:
    """Returns `port`, or for None the first free one from `first`.

    Raises:
        UserError: where it is taken.
    """
    for candidate in [port] if port is not None else range(first, first + 100):
        with closing(socket.socket()) as probe, suppress(OSError, OverflowError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, candidate))
            return candidate
    raise UserError(
        f"port {port or first} of {HOST} is taken or none", "a free port, 1024 to 65535", f"--port {first + 1}"
    )
