"""Packages on disk: their places, and whether they are installed, without importing them."""

import site
import sysconfig
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")
"""Names of folders that only installers write to: pip's and Debian's."""


def is_installed(spec: ModuleSpec) -> bool:
    """Returns whether a top-level package is installed; one that is only linked to from there is the user's own."""
    paths = places(spec)
    return bool(paths) and all(_is_installed(place) for place in paths)


def _is_installed(place: Path) -> bool:
    """Returns whether an installer put `place` there: into this environment, one added to its path, or any folder."""
    if any(place.is_relative_to(root) for root in installed_roots()):
        return True
    return any(folder.name in INSTALLED for folder in place.parents) or place.name in _recorded(place.parent)


def _recorded(folder: Path) -> set[str]:
    """Returns the top-level names that `pip install --target` has put into a folder, by the records that it leaves."""
    records = [path.read_text(errors="replace").splitlines() for path in folder.glob("*.dist-info/RECORD")]
    return {line.partition(",")[0].partition("/")[0] for lines in records for line in lines}


def find_package(name: str) -> ModuleSpec | None:
    """Returns the spec of a top-level package or module, without importing it; None where there is none."""
    try:
        return find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def places(spec: ModuleSpec) -> list[Path]:
    """Returns the folders of a package (several of a namespace), or the file of a module or of a zip archive."""
    if spec.submodule_search_locations is not None:
        return [_existing(Path(place)) for place in spec.submodule_search_locations]
    return [_existing(Path(spec.origin))] if spec.has_location and spec.origin else []


def _existing(path: Path) -> Path:
    path = path.resolve()
    return next((place for place in (path, *path.parents) if place.exists()), path)


def is_standard(spec: ModuleSpec) -> bool:
    """Returns whether a top-level module comes with Python."""
    if spec.origin in ("built-in", "frozen"):
        return True
    roots = [Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "platstdlib")]
    return not is_installed(spec) and all(any(place.is_relative_to(root) for root in roots) for place in places(spec))


def installed_roots() -> list[Path]:
    """Returns the folders that packages are installed to."""
    paths = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    return [Path(path).resolve() for path in [*paths, *site.getsitepackages(), site.getusersitepackages()]]
