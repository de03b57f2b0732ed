"""The folder `outputs`, kept out of git."""

from pathlib import Path

FOLDERS = ("runs", "sweeps", "cache", "artifacts")
"""Of `outputs`."""


OWN = (*FOLDERS, "mlflow.", ".gitignore")
"""Beginnings of the names of all that this project writes into `outputs`."""


def unknown_to_git(outputs: Path) -> None:
    """Keeps the files of runs out of the git status of the code around them, which runs record.

    In a folder with files of others, only the folders that are made here are marked.
    """
    if all(path.name.startswith(OWN) for path in outputs.iterdir()):
        _mark(outputs)
        return
    for name in FOLDERS:
        folder = outputs / name
        if not folder.exists():
            folder.mkdir()
            _mark(folder)


def _mark(folder: Path) -> None:
    path = folder / ".gitignore"
    if not path.exists():
        path.write_text("*\n")
