"""Paths as users type them, asked for without an error where they can be none."""

from pathlib import Path


def resolved(text: str) -> Path | None:
    """Returns the absolute path that `text` means, or None where it can be none: too long, or of an unknown user."""
    try:
        path = Path(text).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def is_folder(text: str) -> bool:
    """Returns whether there is a folder of that path."""
    path = resolved(text)
    return path is not None and path.is_dir()


def exists(text: str) -> bool:
    """Returns whether there is anything of that path."""
    path = resolved(text)
    return path is not None and path.exists()
