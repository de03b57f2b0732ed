"""The folder `outputs`, kept out of git."""

from pathlib import Path

from pipeline.paths import OUTPUT_FOLDERS

OWN = (*OUTPUT_FOLDERS, "mlflow.", ".gitignore")
"""Prefixes of the names of all files and folders that this project writes into `outputs`."""


def unknown_to_git(outputs: Path) -> None:
    """Hides the files of runs from the git status of the surrounding code, which runs record.

    In a folder with other files, only the folders made here are marked.
    """
    if all(path.name.startswith(OWN) for path in outputs.iterdir()):
        _mark(outputs)
        return
    for name in OUTPUT_FOLDERS:
        folder = outputs / name
        if not folder.exists():
            folder.mkdir()
            _mark(folder)


def _mark(folder: Path) -> None:
    path = folder / ".gitignore"
    if not path.exists():
        path.write_text("*\n")
