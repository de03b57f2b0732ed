"""The lines that a sweep prints about its jobs, and the table of those that run."""

import math
import time
from collections.abc import Sequence

from rich.table import Table

from pipeline.console import Console
from pipeline.exit_codes import DONE, WRONG_CONFIGURATION
from pipeline.launch.handle import Handle
from pipeline.launch.launcher import LOOK_SECONDS
from pipeline.runs.finding import progress
from pipeline.runs.folder import RunFolder
from pipeline.runs.summary import scored
from pipeline.sweep.jobs import SweepJob
from pipeline.sweep.source import JobSource, Work


class Progress:
    """Prints the beginning, the progress and the results of a sweep's jobs."""

    def __init__(self, work: Work, source: JobSource, console: Console) -> None:
        self._work = work
        self._source = source
        self._console = console
        self._titles: dict[RunFolder, str] = {}
        self._running: Sequence[Handle] = ()

    def say(self, job: SweepJob, text: str, style: str | None = None) -> None:
        """Print a line about a job."""
        self._console.log(f"{self._title(job)}  {text}", style=style)

    def begin(self, job: SweepJob, run: RunFolder) -> None:
        """Take note of a job that is about to begin."""
        self._titles[run] = self._title(job)

    def poll(self, running: Sequence[Handle]) -> None:
        """Take note of the jobs that run now."""
        self._running = running

    def show_end(self, job: SweepJob, run: RunFolder, code: int, seconds: float, again: bool) -> None:
        """Print the result of a job, and where to find more about a failed one.

        Args:
            job: The job.
            run: Its run.
            code: Its exit code.
            seconds: How long it ran.
            again: Whether it will run again.
        """
        summary = run.read()
        if code == DONE and summary is not None:
            best = summary.metrics.get(f"val/best_{summary.primary}")
            score = f"val {summary.primary} {scored(summary.primary, best)}" if best is not None else ""
            epoch = summary.facts.pruned_after_epoch
            pruned = f"pruned after epoch {epoch}" if epoch is not None else ""
            self.say(job, f"{summary.status} in {seconds:.1f} s  {pruned or score}".rstrip())
            return
        lost = ("REFUSED" if code == WRONG_CONFIGURATION else "DIED", job.reason)
        status, error = (summary.status, summary.error) if summary is not None else lost
        why = (f": {error}" if error else "") + ("; retrying" if again else "")
        self.say(job, f"{status} in {seconds:.1f} s, exit code {code}{why}", style="bold red")
        if "(traceback in" not in why:
            self._console.log(f"     its logs are in {run}")

    def table(self) -> Table:
        """Return the jobs that run, for a terminal."""
        table = Table("running", "epoch", "best on validation", "seconds", box=None, pad_edge=False, header_style="dim")
        for process in self._running:
            epoch, best = progress(process.folder, int(time.monotonic() / LOOK_SECONDS))
            epochs = getattr(process.job.experiment.settings.get("train"), "epochs", "?")
            score = "" if math.isnan(best) else f"{best:.4g}"
            seconds = f"{time.monotonic() - process.started:.0f}"
            table.add_row(self._titles[process.folder], f"{epoch}/{epochs}", score, seconds)
        done = sum(job.exit_code is not None for job in self._source.jobs)
        table.caption = f"{done} of {self._work.total} {self._work.unit}s have ended"
        return table

    def _title(self, job: SweepJob) -> str:
        best = "best " if job.finishes and self._work.settings.finish == "best" else ""
        return f"{best}{self._work.unit} {job.number:>{len(str(self._work.total))}}/{self._work.total}  {job.label}"
