"""Where the configuration is, and where runs leave things."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

CHECKOUT: Path | None = _HERE.parent if (_HERE.parent / "pyproject.toml").is_file() else None
"""The source tree, or None where the package is installed from a wheel."""

CONF: Path = CHECKOUT / "conf" if CHECKOUT else _HERE / "conf"
"""The configuration; a wheel carries it inside the package."""


def shorter(path: Path) -> str:
    """Returns `path` as the user would write it here: relative where it lies below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def default_outputs() -> Path:
    """Returns the tree's `outputs`, from wherever it is run; of an installed package, the one here."""
    return (CHECKOUT or Path.cwd()) / "outputs"
