"""The code of a run: its commit, uncommitted changes, command and packages. Results are hidden from git."""

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
"""Maximum number of characters of a recorded diff."""

VERSIONED = ("tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf", "tensorflow-datasets", "scikit-learn")


@dataclass(frozen=True)
class CodeState:
    """The state of a git repository."""

    commit: str
    dirty: bool
    """Whether there are uncommitted changes."""
    diff: str
    """The uncommitted changes without secrets, cut at DIFF_LIMIT."""


def code_state(folder: Path | None = None) -> CodeState | None:
    """Return the state of the repository that contains `folder`; None if there is no repository.

    The default folder is the source tree of this project, or the working directory if the project is installed as a
    package. New files count as uncommitted changes but are not in the diff; `code.json` has the digests of new code.
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
    """Return the tags for MLflow's columns Source, Version and User.

    The source is the command. MLflow's own clients use the name of the file, which is `__main__.py` for every module.
    The names of the tags are from `mlflow/utils/mlflow_tags.py`.
    """
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # the user of a container may not have a name
        user = "unknown"
    tags = {"mlflow.user": user, "mlflow.source.name": command_name(), "mlflow.source.type": "LOCAL"}
    if state is not None:
        tags |= {"mlflow.source.git.commit": state.commit, "mlflow.source.git.dirty": str(state.dirty).lower()}
    return tags


def command(overrides: Sequence[str] = ()) -> str:
    """Return the command line of this process as typed, quoted for a shell, without secrets.

    Args:
        overrides: The overrides of the run. They replace `resume=<run>`, which would not repeat the run.
    """
    words = [word for word in command_line()[1:] if _resumed(word) in (None, "auto", "never")]
    if overrides and len(words) < len(command_line()) - 1:
        typed = read_arguments(words).overrides
        words = [*(word for word in words if word not in typed), *overrides]
    return _quoted(words)


def resuming_command(run: str | None = None) -> str:
    """Return the command line that resumes the run of this process: as typed, but without `resume=never`.

    Args:
        run: The folder of the run, which replaces an id, because the id may have changed with the store.
    """
    words = [word for word in command_line()[1:] if _resumed(word) != "never"]
    return _quoted([f"resume={run}" if run and _resumed(word) not in (None, "auto") else word for word in words])


def _resumed(word: str) -> str | None:
    """Return the value of a word that sets `resume`; None for any other word."""
    name, value = split_override(word)
    return value.strip("'\"") if name == "resume" else None


def _quoted(words: Sequence[str]) -> str:
    return str(redact(f"{command_name()} {shlex.join(redact_overrides(words))}".rstrip()))


def _diff(top: Path) -> str:
    """Return the uncommitted changes of tracked files, without secrets."""
    text = git(top, "diff", "HEAD") or git(top, "diff") or ""
    if len(text) > DIFF_LIMIT:  # cut at the end of a line, because half a key would not be recognized as a secret
        text = f"{text[:DIFF_LIMIT].rpartition(chr(10))[0]}\n[cut: the first {DIFF_LIMIT} of {len(text)} characters]\n"
    return str(redact(text))


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git; None if git is missing, fails or takes more than 20 seconds."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, timeout=20, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def unknown_to_git(outputs: Path) -> None:
    """Hide results from the git status of the surrounding repository, because runs record that status."""
    if not (outputs / ".gitignore").exists():
        names = [".gitignore", "mlflow.*", *(f"{name}/" for name in OUTPUT_FOLDERS)]
        (outputs / ".gitignore").write_text("".join(f"/{name}\n" for name in names))


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python, this project and the packages that affect the results of a run."""
    numbers = {name: metadata.version(name) for name in VERSIONED}
    return {"python": sys.version.split()[0], "pipeline": __version__, **numbers}


@cache
def packages() -> str:
    """Return all installed distributions as lines `name==version`, without the addresses they were installed from.

    The list is read at the first call, so it has the versions that this process (or its parent) has imported.
    """
    numbers = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in numbers.items() if name]
    return "\n".join(sorted(lines, key=str.lower)) + "\n"
