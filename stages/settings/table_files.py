"""The files of a table: look up paths and patterns, and detect formats by suffixes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.errors import UserError

SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".feather": "feather", ".npz": "npz",
}  # fmt: skip
"""Formats by suffix. Suffixes of text files may be followed by `.gz`."""

NAMES = (*SUFFIXES, *(f"{suffix}.gz" for suffix, kind in SUFFIXES.items() if kind == "csv"))
"""Endings of the names of tables."""


def files_of(files: str | Sequence[str] | Mapping[str, Any]) -> list[Path]:
    """Return the files of paths and patterns, each once.

    They are in the order of the list; the files of a pattern are ordered by name. If files are given by split, those of
    each split are together.

    Raises:
        UserError: If a file does not exist or has an unknown format.
    """
    if isinstance(files, Mapping):
        return [path for part in files.values() for path in files_of(part)]
    all_paths: list[Path] = []
    for pattern in [files] if isinstance(files, str) else files:
        paths: list[Path] = []
        with suppress(ValueError, RuntimeError, OSError):  # `a**b`, the home of an unknown user, a name too long
            path = Path(pattern).expanduser()
            paths = [path] if path.exists() else sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        if not paths:
            raise UserError(
                f"data.files={pattern}: {Path(pattern).absolute()} was not found",
                "an existing file",
                "data.files=<file>",
            )
        all_paths += paths
    for path in all_paths:
        if not path.is_file():
            raise UserError(f"data.files={path} is not a file", "files, or a pattern", f"data.files='{path}/*.csv'")
        if format_of(path) is None:
            raise UserError(f"data.files={path} has an unknown format", f"a file that ends in {', '.join(SUFFIXES)}")
    return list(dict.fromkeys(all_paths))


def format_of(path: Path) -> str | None:
    """Return the format of a file by its suffix; None if it is unknown."""
    return SUFFIXES.get(Path(path.name.removesuffix(".gz")).suffix.lower())
