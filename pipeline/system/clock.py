"""Start time of this process, from which its user waits."""

import os
import time
from contextlib import suppress
from pathlib import Path

_LOADED = time.monotonic()

_START_TIME = 19
"""Index of `starttime` among the fields of /proc/<pid>/stat after the name: proc_pid_stat(5)."""


def process_started() -> float:
    """Returns the start time of this process, in seconds of `time.monotonic()`.

    On Linux to a hundredth of a second, for a forked process the time of the fork; elsewhere the time of this module's
    import. (psutil adds the time of the boot, which the kernel gives in whole seconds.)
    """
    with suppress(OSError, ValueError, IndexError, AttributeError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        if age >= 0:
            return time.monotonic() - age
    return _LOADED
