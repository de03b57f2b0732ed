"""Digest of the source code behind a run's numbers, which must be unchanged for the run to be resumed.

It covers this project, every package that a `_target_` names, the user's own packages that those import, and the
folders of `--config-dir`. Files count by their content, tracked by git or not; installed packages by their version.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.paths import CONF, OUTPUT_FOLDERS
from pipeline.source_code.packages import find_package, is_installed, is_standard, places
from stages.settings.places import regular_file
from stages.storage.atomic import atomic_write

NAME = "code.json"
"""File in the folder of a run or a sweep that lists its sources."""

SUFFIXES = (".py", ".pyx", ".so", ".pyd", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt")
"""Files of a package that are code, or that its code may read as configuration."""

CONFIGURATION_SUFFIXES = (".yaml", ".yml")
LARGEST_READ_BYTES = 1_000_000
"""A larger file that is not Python is data: its size and time represent its content."""

NUMERIC = ("tensorflow", "keras", "numpy")
"""Installed packages that decide the numbers of every run."""

_HERE = Path(__file__).resolve().parent.parent
_PROJECT = ("pipeline", "stages")


class Sources:
    """The sources of one run.

    Attributes:
        files: from a file (or an installed package) to 16 digits of its content (or its version).
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(sorted(files.items()))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change with any of the sources."""
        return _hex(json.dumps(self.files).encode())

    def write(self, folder: Path) -> None:
        """Writes the list to `folder`, whole or not at all."""
        atomic_write(folder / NAME, json.dumps(self.files, indent=1))

    def changed(self, folder: Path) -> str:
        """Returns a short list of the sources that differ from those in `folder`; empty where it has no list."""
        try:
            before = dict(json.loads((folder / NAME).read_text()))
        except (OSError, ValueError, TypeError):
            return ""
        names = [name for name in {**before, **self.files} if before.get(name) != self.files.get(name)]
        names.sort(key=lambda name: (name.startswith(_PROJECT), name))  # the user's own first
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more


def sources(experiment: Experiment) -> Sources:
    """Returns the sources of `experiment`; imports none of them."""
    files: dict[str, str] = {}
    results = {experiment.outputs / name for name in OUTPUT_FOLDERS}
    for name in _PROJECT:
        _add(files, _files(_HERE / name, SUFFIXES, results), _HERE)
    _add(files, _files(CONF, CONFIGURATION_SUFFIXES, results), CONF.parent)
    for folder in experiment.config_dirs:
        _add(files, _files(folder, CONFIGURATION_SUFFIXES, results), folder, "--config-dir/")
    targets = targets_in(OmegaConf.to_container(experiment.document, resolve=True))
    _add_packages(files, {target.partition(".")[0] for target in targets}, results)
    return Sources(files)


def new_for_other_code(now: Sources, folder: Path, name: str, kind: str) -> str:
    """Returns the log line about why the run or sweep `name` in `folder` is not resumed."""
    changed = now.changed(folder)
    details = f" ({changed})" if changed else ""
    return f"the code has changed since {name} was stopped{details}: a new {kind}; resume={name} resumes that one"


def targets_in(values: Any) -> Iterator[str]:
    """Yields every `_target_` in a configuration, at any depth of mappings and lists."""
    if isinstance(values, Mapping):
        target = values.get("_target_")
        if isinstance(target, str):
            yield target
        for part in values.values():
            yield from targets_in(part)
    elif isinstance(values, (list, tuple)):
        for part in values:
            yield from targets_in(part)


def _add_packages(files: dict[str, str], names: Iterable[str], results: set[Path]) -> None:
    """Adds top-level packages, and those that the user's own among them import."""
    remaining = sorted({*names, *NUMERIC})
    seen = set(_PROJECT)
    while remaining:
        name = remaining.pop()
        spec = None if name in seen else find_package(name)
        seen.add(name)
        if spec is None or is_standard(spec):
            continue
        if is_installed(spec):
            files[name] = _version(name, spec)
            continue
        for place in places(spec):
            paths = _files(place, SUFFIXES, results) if place.is_dir() else [place]
            _add(files, paths, place.parent)
            remaining += sorted(set(_imports(paths)) - seen)


def _version(name: str, spec: ModuleSpec) -> str:
    """Returns the version of an installed package; for one installed from a folder, a digest of its content."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # not named like its distribution: file sizes distinguish versions
        files = [path for place in places(spec) for path in _files(place, SUFFIXES, set())]
        return _hex("\n".join(f"{path.name} {path.stat().st_size}" for path in files).encode())
    if distribution.read_text("direct_url.json") is None:
        return distribution.version
    lines = (distribution.read_text("RECORD") or "").splitlines()
    return _hex("\n".join(line for line in lines if not line.startswith("..") and ".dist-info/" not in line).encode())


def _files(root: Path, suffixes: Sequence[str], results: set[Path]) -> list[Path]:
    """Returns the files below `root` with one of `suffixes`, in order, without hidden, cached and result files."""
    if not root.is_dir():
        return [root] if root.is_file() else []
    files = []
    for folder, folders, names in os.walk(root):
        place = Path(folder)
        folders[:] = sorted(name for name in folders if _holds_code(place / name, results))
        files += [place / name for name in sorted(names) if name.endswith(tuple(suffixes)) and name[0] != "."]
    return files


def _holds_code(folder: Path, results: set[Path]) -> bool:
    if folder.name[0] == "." or folder.name == "__pycache__" or folder.suffix in (".egg-info", ".dist-info"):
        return False
    if folder in results or (folder / "pyvenv.cfg").is_file():
        return False
    ignored = folder / ".gitignore"  # this is how tools mark their output, as this project does
    return not (ignored.is_file() and ignored.stat().st_size < 100 and ignored.read_text().strip() == "*")


def _add(files: dict[str, str], paths: Iterable[Path], root: Path, prefix: str = "") -> None:
    for path in paths:
        name = prefix + path.relative_to(root).as_posix()
        files[name] = _hex(f"{files[name]}{_content(path)}".encode()) if name in files else _content(path)


def _content(path: Path) -> str:
    try:
        facts = path.stat()
        if facts.st_size > LARGEST_READ_BYTES and path.suffix != ".py":
            return f"{facts.st_size} {facts.st_mtime_ns}"
        return _hex(regular_file(path).read_bytes())
    except OSError as error:  # deleted in the meantime, or a broken link
        return f"unreadable ({error.strerror})"


def _imports(paths: Iterable[Path]) -> Iterator[str]:
    """Yields the top-level names that Python files import, by their source."""
    for path in paths:
        if path.suffix != ".py":
            continue
        try:
            tree = ast.parse(regular_file(path).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            yield from (name.partition(".")[0] for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module]
    if isinstance(node, ast.Call) and node.args:  # importlib.import_module("helpers")
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        argument = node.args[0]
        if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
            return [argument.value] if isinstance(argument.value, str) and argument.value[:1] not in (".", "") else []
    return []


def _hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
