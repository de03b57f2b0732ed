"""From what code, packages and machine a run came."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline import __version__, machine
from pipeline.arguments import command_name
from pipeline.paths import CHECKOUT
from pipeline.secrets import redact, redact_overrides

DIFF_LIMIT_BYTES = 1_000_000
_CODE = ("*.py", "*.yaml", "*.yml", "*.toml")
VERSIONED = ("tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf", "tensorflow-datasets", "scikit-learn")


@dataclass(frozen=True)
class CodeState:
    """commit: of the repository at `root`; diff: what is not committed, cut at DIFF_LIMIT_BYTES.

    dirty: whether anything is not committed; None where git did not say.
    """

    root: Path
    commit: str
    dirty: bool | None
    diff: str


def code_state(folder: Path | None = None) -> CodeState | None:
    """Returns the state of the repository around `folder`, or None where there is none.

    Without `folder`: the source tree of this project, and for an installed package that of the working directory.
    New files count as uncommitted changes where they are code or configuration; git's ignored ones never do.
    """
    start = folder or CHECKOUT or Path.cwd()
    root = _git(start, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    top = Path(root.strip())
    commit = (_git(top, "rev-parse", "HEAD") or "none").strip()
    status = _git(top, "status", "--porcelain")
    if status is None:
        return CodeState(top, commit, None, "")
    return CodeState(top, commit, bool(status.strip()), _diff(top) if status.strip() else "")


def versions() -> dict[str, str]:
    """Returns the versions of Python, this project and the packages that decide a run's numbers."""
    found = {"python": sys.version.split()[0], "pipeline": __version__}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def packages() -> str:
    """Returns every installed distribution as `name==version`, a line each; no addresses."""
    found = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in found.items() if name]
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def command() -> str:
    """Returns the command line that started this process as it was typed, quoted for a shell, without secrets."""
    return str(redact(f"{command_name()} {shlex.join(redact_overrides(sys.argv[1:]))}".rstrip()))


def environment() -> dict[str, object]:
    return {"machine": machine.facts(), "versions": versions()}


def _diff(top: Path) -> str:
    # On a copy of the index, so that new files can be shown as added without touching the user's own index.
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        own = _git(top, "rev-parse", "--git-path", "index")
        if own and (top / own.strip()).is_file():
            shutil.copy(top / own.strip(), index)
        variables = {"GIT_INDEX_FILE": str(index)}
        new = (_git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE) or "").split("\0")
        _git(top, "add", "--intent-to-add", "--", *filter(None, new), **variables)
        text = _git(top, "diff", "HEAD", **variables) or _git(top, "diff", **variables) or ""
    data = text.encode()
    if len(data) > DIFF_LIMIT_BYTES:
        kept = data[:DIFF_LIMIT_BYTES].decode(errors="ignore")
        return f"{kept}\n[cut: {len(data)} bytes, of which the first {DIFF_LIMIT_BYTES} are here]\n"
    return text


def _git(folder: Path, *arguments: str, **variables: str) -> str | None:
    """Returns what git prints, or None where git is missing, refuses or takes over 20 seconds."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", **variables}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, timeout=20, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
