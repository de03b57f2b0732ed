"""Signals during the imports of a command: the process ends without a traceback, with the documented exit code.

Imported first of all by `python -m pipeline`, so it imports nothing that takes time.
"""

import os
import signal
import time

STARTED = time.monotonic()
"""Time of the command's start, by the monotonic clock."""

for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler) or _number == signal.SIGINT:
        signal.signal(_number, lambda number, frame: os._exit(128 + number))
