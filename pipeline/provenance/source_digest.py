"""Digest of the source code that a run's results depend on. A run is resumed only if it is unchanged.

It covers this project, the top-level package of every `_target_`, and the folders of `--config-dir`. The folder
`sweep/` is left out: the settings that determine the jobs are part of the sweep's identity, and the others may change.
Files count by their content, whether git tracks them or not. TensorFlow, Keras and NumPy count by their version. Other
packages that this code imports do not count.
"""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.experiment import Experiment
from pipeline.paths import CONF, OUTPUT_FOLDERS
from pipeline.provenance.code_state import versions
from pipeline.records import convert, read_json
from stages.errors import UserError
from stages.storage.atomic import atomic_write

NAME = "code.json"
"""File in the folder of a run or a sweep that lists its sources."""

SUFFIXES = (".py", ".pyx", ".so", ".pyd", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt")
"""Suffixes of files that are code, or that code may read as configuration."""

NUMERIC = ("tensorflow", "keras", "numpy")
"""Packages that affect the results of every run, and count by their version."""

_PROJECT = ("pipeline", "stages")


class Sources:
    """The source files of a run.

    Attributes:
        files: Maps each file to 16 digits of its content, and each installed package to its version.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(sorted(files.items()))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change if any source file changes."""
        return _hex(json.dumps(self.files).encode())

    def write(self, folder: Path) -> None:
        """Write the list to `folder` atomically."""
        atomic_write(folder / NAME, json.dumps(self.files, indent=1))

    def changed(self, folder: Path) -> str:
        """Return a short list of the files that differ from those listed in `folder`; empty without a list there."""
        try:
            before = convert(read_json(folder / NAME), dict[str, str], NAME)
        except (OSError, ValueError):
            return ""
        names = [name for name in {**before, **self.files} if before.get(name) != self.files.get(name)]
        names.sort(key=lambda name: (name.startswith(_PROJECT), name))  # the user's files first
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more


_loaded: dict[str, tuple[object, str]] = {}
"""Maps a module to its spec, which a reload replaces, and to the digest of its file when a run first used it."""


def refuse_edited(code: Sources) -> None:
    """Raise UserError if this process, such as a notebook, still runs an older version of a file in `code`."""
    for path, digest in code.files.items():
        name = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is None:
            continue
        known, before = _loaded.get(name, (None, digest))
        if known is spec and before != digest:
            problem = f"{path} was edited after this process imported it"
            raise UserError(problem, "the code that this process runs", f"importlib.reload({name}), or a new process")
        _loaded[name] = spec, digest


def sources(experiment: Experiment) -> Sources:
    """Return the source files of `experiment`, without importing them."""
    results = {experiment.outputs / name for name in OUTPUT_FOLDERS}
    files = dict(_contents(CONF, results | {CONF / "sweep"}))
    for number, folder in enumerate(experiment.config_dirs):
        files |= _contents(folder, results | {folder / "sweep"}, f"--config-dir {number}: ")
    files |= {name: versions()[name] for name in NUMERIC}
    files |= _project_files()
    targets = targets_in(OmegaConf.to_container(experiment.document, resolve=True))
    packages = {target.partition(".")[0] for target in targets}
    for name in sorted(packages - {*_PROJECT, *NUMERIC, *sys.stdlib_module_names}):
        places = _places(name)
        for place in places:
            files |= _contents(place, results)
        if name == "__main__" and not places:  # the cells of a notebook are not files, so the code of each run differs
            files[name] = os.urandom(8).hex()
    return Sources(files)


@functools.cache
def _project_files() -> dict[str, str]:
    """Return this project's files with their content at the first call, which this process has imported."""
    places = [place for name in _PROJECT for place in _places(name)]
    return {path: digest for place in places for path, digest in _contents(place, set())}


def _places(name: str) -> list[Path]:
    """Return the folders of a package (a namespace package may have several), or the file of a module."""
    if name == "__main__":
        script = vars(sys.modules[name]).get("__file__")
        return [Path(script).resolve()] if script else []
    spec = find_spec(name)
    paths = (spec.submodule_search_locations or [str(spec.origin)]) if spec else []
    return [Path(path).resolve() for path in paths]


def new_for_other_code(now: Sources, folder: Path, name: str, kind: str) -> str:
    """Return the log line that explains why the run or sweep `name` in `folder` is not resumed."""
    changed = now.changed(folder)
    details = f" ({changed})" if changed else ""
    reason = f"the code has changed since {name} was stopped{details}"
    return f"{reason}: this is a new {kind}; resume={name} resumes the old one"


def targets_in(values: Any) -> Iterator[str]:
    """Yield every `_target_` in a configuration, at any depth of mappings and lists."""
    if isinstance(values, Mapping):
        target = values.get("_target_")
        if isinstance(target, str):
            yield target
        for part in values.values():
            yield from targets_in(part)
    elif isinstance(values, (list, tuple)):
        for part in values:
            yield from targets_in(part)


def _contents(root: Path, results: set[Path], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of the files below `root`, or of the file `root`, and digests of their contents."""
    for path in _files(root, results):
        if path.is_file():  # skips broken links
            yield f"{prefix}{path.relative_to(root.parent).as_posix()}", _hex(path.read_bytes())


def _files(root: Path, results: set[Path]) -> Iterator[Path]:
    """Yield the files below `root` that are code, without hidden, cached and result files."""
    if not root.is_dir():
        yield root
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        folders[:] = [name for name in folders if Path(place, name) not in results]
        yield from (Path(place, name) for name in names if name.endswith(SUFFIXES) and name[0] != ".")


def _hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
