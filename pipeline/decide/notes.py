"""Notes about a decision, which a command prints before it acts."""

from dataclasses import dataclass, field

from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.runs.summary import Summary


@dataclass
class Notes:
    """Lines for the user, some of them warnings."""

    lines: list[tuple[bool, str]] = field(default_factory=list)
    """For each line, whether it is a warning, and its text."""

    def log(self, line: str) -> None:
        self.lines.append((False, line))

    def warn(self, line: str) -> None:
        self.lines.append((True, line))

    def run(self, doing: str, run: Summary, more: str = "") -> None:
        """Note what happens with an earlier run.

        Args:
            doing: What happens, such as `resuming`.
            run: The earlier run.
            more: The end of the line.
        """
        self.log(f"{doing} {shorter(run.folder)} (status: {run.status}){more}")
        if run.overrides:
            self.log(f"with the overrides {' '.join(run.overrides)}")

    def show(self, console: Console) -> None:
        """Print the lines."""
        for is_warning, line in self.lines:
            (console.warn if is_warning else console.log)(line)
