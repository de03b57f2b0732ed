"""Ports on this machine's loopback interface."""

import socket

from stages.errors import UserError

HOST = "127.0.0.1"


def free_port(port: int | None, first: int) -> int:
    """Returns `port`, or without one the first free one from `first`.

    Raises:
        UserError: where it is none, taken, or not for this user.
    """
    for candidate in [port] if port else range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except (OSError, OverflowError):
                continue
            return candidate
    raise UserError(
        f"port {port or first} of {HOST} cannot be had", "a free port, 1024 to 65535", f"--port={first + 1}"
    )
