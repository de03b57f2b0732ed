"""The folder `outputs`, kept out of git."""

from pathlib import Path

FOLDERS = ("runs", "sweeps", "cache", "artifacts")
"""Of `outputs`."""


OWN = (*FOLDERS, "mlflow.", ".gitignore")
"""How the names begin of all that is in a folder `outputs` that holds nothing of anybody else."""


def unknown_to_git(outputs: Path) -> None:
    """Keeps what runs leave behind out of the state of the code around it, by which runs are told apart.

    A folder with files of somebody else's is left as it is: there, only folders that are made here are marked.
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
