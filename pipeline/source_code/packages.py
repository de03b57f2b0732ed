"""Packages on disk: their places, and whether they are installed, without importing them."""

import site
import sysconfig
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path


def is_installed(spec: ModuleSpec) -> bool:
    """Returns whether a top-level package is installed; one that is only linked to from there is the user's own."""
    paths = places(spec)
    return bool(paths) and all(any(place.is_relative_to(root) for root in installed_roots()) for place in paths)


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
