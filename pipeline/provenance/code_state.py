"""Code of a run: its commit, uncommitted changes, command and packages; `outputs` is kept out of git."""

import getpass
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import __version__
from pipeline.command_line.arguments import command_line, command_name, read_arguments
from pipeline.config.names import split_override
from pipeline.paths import CHECKOUT, OUTPUT_FOLDERS
from pipeline.redaction import redact, redact_overrides

DIFF_LIMIT = 1_000_000
"""Characters of a diff."""

VERSIONED = ("tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf", "tensorflow-datasets", "scikit-learn")


@dataclass(frozen=True)
class CodeState:
    """commit: of the repository; diff: uncommitted changes without secrets, cut at DIFF_LIMIT.

    dirty: whether there are uncommitted changes.
    """

    commit: str
    dirty: bool
    diff: str


def code_state(folder: Path | None = None) -> CodeState | None:
    """Return the state of the repository around `folder`, or None where there is none.

    Without `folder`: the source tree of this project, or, for an installed package, the working directory. New files
    count as uncommitted changes, and are not in the diff: `code.json` has the digests of those that are code.
    """
    start = folder or CHECKOUT or Path.cwd()
    root = git(start, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    top = Path(root.strip())
    commit = (git(top, "rev-parse", "HEAD") or "none").strip()
    dirty = bool(git(top, "status", "--porcelain"))
    return CodeState(commit, dirty, _diff(top) if dirty else "")


def source_tags(state: CodeState | None) -> dict[str, str]:
    """Return who runs what, in the tags from which MLflow fills its columns Source, Version and User.

    The source is the command, where MLflow's own clients take the file: of a module that is `__main__.py` for all.
    Source of the names: `mlflow/utils/mlflow_tags.py`.
    """
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    tags = {"mlflow.user": user, "mlflow.source.name": command_name(), "mlflow.source.type": "LOCAL"}
    if state is not None:
        tags |= {"mlflow.source.git.commit": state.commit, "mlflow.source.git.dirty": str(state.dirty).lower()}
    return tags


def command(overrides: Sequence[str] = ()) -> str:
    """Return the command line of this process as typed, quoted for a shell, without secrets.

    Args:
        overrides: Those of the run, which replace `resume=<run>`, as that would not repeat it.
    """
    words = [word for word in command_line()[1:] if _resumed(word) in (None, "auto", "never")]
    if overrides and len(words) < len(command_line()) - 1:
        own = read_arguments(words).overrides
        words = [*(word for word in words if word not in own), *overrides]
    return _shown(words)


def resuming_command(run: str | None = None) -> str:
    """Return the command line that resumes what this process has begun: as typed, but without `resume=never`.

    Args:
        run: What to name instead of an id, which another store may have replaced.
    """
    words = [word for word in command_line()[1:] if _resumed(word) != "never"]
    return _shown([f"resume={run}" if run and _resumed(word) not in (None, "auto") else word for word in words])


def _resumed(word: str) -> str | None:
    """Return the value of a word that sets `resume`; None for any other."""
    name, value = split_override(word)
    return value.strip("'\"") if name == "resume" else None


def _shown(words: Sequence[str]) -> str:
    return str(redact(f"{command_name()} {shlex.join(redact_overrides(words))}".rstrip()))


def _diff(top: Path) -> str:
    """Return uncommitted changes of files that git knows, without secrets."""
    text = git(top, "diff", "HEAD") or git(top, "diff") or ""
    if len(text) > DIFF_LIMIT:  # cut between two lines, as half a key would not be recognized
        text = f"{text[:DIFF_LIMIT].rpartition(chr(10))[0]}\n[cut: the first {DIFF_LIMIT} of {len(text)} characters]\n"
    return str(redact(text))


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None where git is missing, fails or takes over 20 seconds."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, timeout=20, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def unknown_to_git(outputs: Path) -> None:
    """Hide the files of runs from the git status of the surrounding code, which runs record."""
    if not (outputs / ".gitignore").exists():
        names = [".gitignore", "mlflow.*", *(f"{name}/" for name in OUTPUT_FOLDERS)]
        (outputs / ".gitignore").write_text("".join(f"/{name}\n" for name in names))


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python, this project and the packages that decide a run's numbers."""
    numbers = {name: metadata.version(name) for name in VERSIONED}
    return {"python": sys.version.split()[0], "pipeline": __version__, **numbers}


@cache
def packages() -> str:
    """Return all installed distributions as lines `name==version`, without addresses.

    As they were at the first call: those that this process, or the one that it was forked from, has imported.
    """
    numbers = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in numbers.items() if name]
    return "\n".join(sorted(lines, key=str.lower)) + "\n"
