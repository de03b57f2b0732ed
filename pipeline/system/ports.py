"""Ports on this machine's loopback interface."""

import socket
from contextlib import closing, suppress

from stages.errors import UserError

HOST = "127.0.0.1"
LAST = 65535


def free_port(port: int | None, first: int) -> int:
    """Returns `port`, or for None the first free one from `first`.

    Raises:
        UserError: where it is none, taken, or not for this user.
    """
    fix = f"--port={first + 1}"
    if port is not None and not 1 <= port <= LAST:
        raise UserError(f"port {port} is none", f"1 to {LAST}", fix)
    for candidate in [port] if port is not None else range(first, first + 100):
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except PermissionError as error:
                problem = f"port {candidate} of {HOST} is not for this user ({error.strerror})"
                raise UserError(problem, f"a free port, 1024 to {LAST}", fix) from error
            return candidate
    raise UserError(f"port {port or first} of {HOST} is taken", f"a free port, 1024 to {LAST}", fix)
