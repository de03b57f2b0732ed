"""Folders of arrays and facts: written once, and read only where every byte is the one that was written.

`facts.json` holds the facts, and of each array the size of its file and the digest of its bytes; one checksum covers
it. An array too large to be read at once is mapped: the digest is that of its header, and whoever reads its rows
compares them with digests that are another array of the folder.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.settings.places import regular_file

FACTS = "facts.json"
HEADER_BYTES = 128
"""Of an .npy file, which its dtype and up to four dimensions fill."""


class DamagedError(ValueError):
    """A folder that is not what was written; the text says where."""


@dataclass(frozen=True)
class ArrayFolder:
    """Contents of a folder. Mapped arrays are read-only, and their rows have not been compared."""

    path: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def write_arrays(
    folder: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray], mapped: Sequence[str] = ()
) -> None:
    """Fill `folder`, which exists.

    Args:
        facts: what JSON holds.
        arrays: of any dtype without Python objects.
        mapped: arrays whose files, such as `images.npy`, are in the folder already.
    """
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    paths = {key: folder / f"{key}.npy" for key in (*arrays, *mapped)}
    files = {key: [key in mapped, path.stat().st_size, _digest(path, key in mapped)] for key, path in paths.items()}
    content = {"facts": dict(facts), "files": files}
    (folder / FACTS).write_text(json.dumps({**content, "checksum": _checksum(content)}))


def read_arrays(folder: Path) -> ArrayFolder:
    """Return the contents of `folder`.

    Raises:
        FileNotFoundError: where there is nothing.
        DamagedError: where a byte is another one, or it cannot be read.
    """
    folder.lstat()
    try:
        content = json.loads(regular_file(folder / FACTS).read_bytes())
        if content.pop("checksum") != _checksum(content):
            raise DamagedError(f"the checksum of {FACTS} does not fit")
        arrays = {key: _array(folder / f"{key}.npy", *facts) for key, facts in content["files"].items()}
        return ArrayFolder(folder, content["facts"], arrays)
    except DamagedError:
        raise
    except Exception as error:  # a damaged file can hold anything
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _array(path: Path, is_mapped: bool, size: int, digest: str) -> np.ndarray:
    if path.stat().st_size != size or _digest(path, is_mapped) != digest:
        raise DamagedError(f"the size or the checksum of {path.name} does not fit")
    return np.asarray(np.load(path, mmap_mode="r" if is_mapped else None, allow_pickle=False))


def _digest(path: Path, is_mapped: bool) -> str:
    """Return the digest of a file, or of its header."""
    with regular_file(path).open("rb") as file:
        digest = hashlib.sha256(file.read(HEADER_BYTES)) if is_mapped else hashlib.file_digest(file, "sha256")
    return digest.hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class ArrayFile:
    """An .npy file of `shape`, written by parts, so that memory holds one of these alone."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape, self._rows = dtype, shape, 0
        self._file = path.open("wb")
        facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, facts)
        self._begins = self._file.tell()

    def add(self, part: np.ndarray) -> None:
        """Appends rows."""
        self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self._rows += len(part)

    def close(self) -> np.ndarray:
        """Returns the rows that were added, mapped; the file has all of them, unused ones at its end."""
        self._file.truncate(self._begins + int(np.prod(self._shape)) * self._dtype.itemsize)
        self._file.close()
        array: np.ndarray = np.load(self._file.name, mmap_mode="r", allow_pickle=False)
        return array[: self._rows]
