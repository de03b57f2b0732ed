"""Paths as users type them, looked up without an error where they are impossible."""

from pathlib import Path


def resolved(text: str) -> Path | None:
    """Absolute path of `text`, or None where it is impossible: too long, or of an unknown user."""
    try:
        path = Path(text).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def is_folder(text: str) -> bool:
    """Whether the path is an existing folder."""
    path = resolved(text)
    return path is not None and path.is_dir()


def is_file_or_folder(text: str) -> bool:
    """Whether the path is an existing file or folder."""
    path = resolved(text)
    return path is not None and (path.is_file() or path.is_dir())
