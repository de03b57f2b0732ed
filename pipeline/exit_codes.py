"""Exit codes of the commands: what a shell, a scheduler or a sweep learns of how they ended."""

DONE = 0
FAILED = 1
WRONG_CONFIGURATION = 2
SWEEP_FAILED = 3
TIMED_OUT = 124
"""After `job_timeout_seconds`, as with timeout(1)."""
HUNG = 142
"""Of a process that gave no sign of life for `hang_seconds`: as if SIGALRM had killed it."""
STOPPED = (129, 130, 141, 143)
"""After a signal: SIGHUP, SIGINT, SIGPIPE (standard output was closed), SIGTERM."""
