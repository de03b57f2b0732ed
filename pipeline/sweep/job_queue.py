"""Queue of the jobs still to run; those that failed are retried at the end."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.exit_codes import DONE, STOPPED, TIMED_OUT, WRONG_CONFIGURATION
from pipeline.planning.job import Job

FINAL = (DONE, WRONG_CONFIGURATION, TIMED_OUT, *STOPPED)
"""Exit codes after which a job is not run again: the same would happen, or the user wants it to end."""


class Queue:
    """An iterator over jobs that may have more after it had none: one that died or failed is put in again."""

    def __init__(self, jobs: Iterable[Job], retries: int, before: Callable[[Job], None] = lambda job: None) -> None:
        """Takes the jobs, each only when it is asked for.

        Args:
            retries: how many times each is run again. before: called with a job before it is handed out.
        """
        self._jobs = iter(jobs)
        self._again = deque[Job]()
        self._left: defaultdict[Path | None, int] = defaultdict(lambda: retries)
        self._before = before

    def __iter__(self) -> "Queue":
        return self

    def __next__(self) -> Job:
        job = next(self._jobs, None)
        if job is None:
            if not self._again:
                raise StopIteration
            job = self._again.popleft()
        self._before(job)
        return job

    def again(self, job: Job, code: int) -> bool:
        """Puts a job that has ended with `code` in again, if it is to be, and returns whether it was."""
        if code in FINAL or not self._left[job.folder]:
            return False
        self._left[job.folder] -= 1
        self._again.append(job)
        return True
