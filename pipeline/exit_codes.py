"""Exit codes of the commands, by which a shell, a scheduler or a sweep sees how they ended."""

DONE = 0
FAILED = 1
WRONG_CONFIGURATION = 2
SWEEP_FAILED = 3
TIMED_OUT = 124
"""The exit code after `job_timeout_seconds`, as for timeout(1)."""
HUNG = 142
"""The exit code of a process that made no progress for `hang_seconds`, as if SIGALRM had killed it."""
STOPPED = (129, 130, 141, 143)
"""The exit codes after the signals SIGHUP, SIGINT, SIGPIPE (standard output was closed) and SIGTERM."""
