"""From what code, packages and machine a run came."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import __version__
from pipeline.command_line.arguments import command_name
from pipeline.paths import CHECKOUT
from pipeline.redaction.mask import redact, redact_overrides
from pipeline.system import machine

DIFF_LIMIT_BYTES = 1_000_000
_SECRET_FILE = re.compile(
    r"(?i)(^|/)(\.?env(\.[\w.-]+)?|[\w.-]+\.env|\.netrc|_netrc|\.pgpass|\.my\.cnf|\.npmrc|\.pypirc|\.git-credentials|"
    r"\.htpasswd|\.dockercfg|kubeconfig|id_(rsa|dsa|ecdsa|ed25519)|"
    r"[\w.-]*(secret|credential|password|passwd)s?[\w-]*(\.(ya?ml|json|toml|ini|cfg|conf|txt|xml|csv|properties))?|"
    r"[\w.-]+\.(pem|key|p12|pfx|jks|keystore|kdbx|tfvars|ovpn|ppk))$"
)
"""Files whose every line may be secret, by the names that tools and people give them."""

_CODE = ("*.py", "*.yaml", "*.yml", "*.toml")
VERSIONED = ("tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf", "tensorflow-datasets", "scikit-learn")


@dataclass(frozen=True)
class CodeState:
    """commit: of the repository at `root`; diff: what is not committed, without secrets, cut at DIFF_LIMIT_BYTES.

    dirty: whether anything is not committed; None where git did not say.
    """

    root: Path
    commit: str
    dirty: bool | None
    diff: str


def code_state(folder: Path | None = None, untracked: bool = False) -> CodeState | None:
    """Returns the state of the repository around `folder`, or None where there is none.

    Without `folder`: the source tree of this project, and for an installed package that of the working directory.
    New files count as uncommitted changes where they are code or configuration; git's ignored ones never do.

    Args:
        untracked: whether the diff has the contents of new files, and not their names and digests alone.
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
    return CodeState(top, commit, bool(status.strip()), _diff(top, untracked) if status.strip() else "")


def versions() -> dict[str, str]:
    """Returns the versions of Python, this project and the packages that decide a run's numbers."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    numbers = {"python": sys.version.split()[0], "pipeline": __version__}
    for name in VERSIONED:
        try:
            numbers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            numbers[name] = "none"
    return numbers


@cache
def packages() -> str:
    """Returns every installed distribution as `name==version`, a line each; no addresses.

    As they were when it was first asked for: what this process, or the one that it was forked from, has imported.
    """
    numbers = {entry.metadata["Name"]: entry.version for entry in metadata.distributions()}
    lines = [f"{name}=={version}" for name, version in numbers.items() if name]
    return "\n".join(sorted(lines, key=str.lower)) + "\n"


def command() -> str:
    """Returns the command line that started this process as it was typed, quoted for a shell, without secrets."""
    return str(redact(f"{command_name()} {shlex.join(redact_overrides(sys.argv[1:]))}".rstrip()))


def environment() -> dict[str, object]:
    return {"machine": machine.facts(), "versions": versions()}


def _diff(top: Path, untracked: bool) -> str:
    """Returns what is not committed, without secrets; new files by their names and digests, or as added ones."""
    listed = _git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE) or ""
    new = [name for name in listed.split("\0") if name]
    # On a copy of the index, so that new files can be shown as added without touching the user's own index.
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        own = _git(top, "rev-parse", "--git-path", "index")
        if own and (top / own.strip()).is_file():
            shutil.copy(top / own.strip(), index)
        variables = {"GIT_INDEX_FILE": str(index)}
        if untracked and new:
            _git(top, "add", "--intent-to-add", "--", *new, **variables)
        text = _git(top, "diff", "HEAD", **variables) or _git(top, "diff", **variables) or ""
    notes = [] if untracked else [f"# new, known by its digest alone: {_named(top, name)}\n" for name in new]
    data = "".join([*notes, *map(_of_file, re.split(r"(?m)^(?=diff --git )", text))]).encode()
    if len(data) > DIFF_LIMIT_BYTES:  # between two lines: half a key would not be known as one
        beginning = data[: data.rfind(b"\n", 0, DIFF_LIMIT_BYTES) + 1 or DIFF_LIMIT_BYTES].decode(errors="ignore")
        return f"{redact(beginning)}\n[cut: {len(data)} bytes, of which the first {DIFF_LIMIT_BYTES} are here]\n"
    return str(redact(data.decode()))


def _named(top: Path, name: str) -> str:
    try:
        return f"{name} sha256:{hashlib.sha256((top / name).read_bytes()).hexdigest()}"
    except OSError as error:  # a link to nowhere, or gone meanwhile
        return f"{name} ({error.strerror})"


def _of_file(section: str) -> str:
    """Returns a file's part of a diff; of a file that is there to hold secrets, no line."""
    header, mark, _ = section.partition("\n@@ ")
    names = re.findall(r"(?m)^(?:diff --git|---|\+\+\+) .*", header)
    if not mark or not any(_SECRET_FILE.search(part) for name in names for part in name.split()):
        return section
    return "".join(f"# {line}\n" for line in header.splitlines()) + "# its lines may be secret, and are not recorded\n"


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
