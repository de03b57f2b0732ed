"""Folders of arrays and facts: written once, and read only where every byte is the one that was written.

`facts.json` holds the facts, and of each array the size of its file and the digest of its bytes; one checksum covers
that and the name of the whole. An array too large to be read at once is mapped: the digest is that of its header, and
whoever reads its rows compares them with digests that are another array of the folder.
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
_BLOCK = 2**20


class DamagedError(ValueError):
    """A folder that is not what was written; the text says where."""


@dataclass(frozen=True)
class ArrayFolder:
    """Contents of a folder. Mapped arrays are read-only, and their rows have not been compared."""

    path: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def write_arrays(
    folder: Path, name: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray], mapped: Sequence[str] = ()
) -> None:
    """Fill `folder`, which exists.

    Args:
        name: of what the folder holds; another one is refused when it is read.
        facts: what JSON holds.
        arrays: of any dtype without Python objects.
        mapped: arrays whose files, such as `images.npy`, are in the folder already.
    """
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", array, allow_pickle=False)
    files = {}
    for key in (*arrays, *mapped):
        path = folder / f"{key}.npy"
        hashed = _header_length(path) if key in mapped else path.stat().st_size
        files[key] = [hashed, _file_digest(path, hashed), path.stat().st_size]
    content = {"name": name, "facts": dict(facts), "files": files}
    (folder / FACTS).write_text(json.dumps({**content, "checksum": _checksum(content)}))


def read_arrays(folder: Path, name: str) -> ArrayFolder:
    """Return the contents of `folder`.

    Args:
        name: as it was written.

    Raises:
        FileNotFoundError: where there is nothing.
        DamagedError: where a byte or the name is another one, or it cannot be read.
    """
    folder.lstat()
    try:
        content = json.loads(regular_file(folder / FACTS).read_bytes())
        if content.pop("checksum") != _checksum(content):
            raise DamagedError(f"the checksum of {FACTS} does not fit")
        if content["name"] != name:
            raise DamagedError(f"it is {content['name']}, renamed")
        arrays = {key: _array(folder / f"{key}.npy", *facts) for key, facts in content["files"].items()}
        return ArrayFolder(folder, content["facts"], arrays)
    except DamagedError:
        raise
    except Exception as error:  # a damaged file can hold anything
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _array(path: Path, hashed: int, digest: str, size: int) -> np.ndarray:
    regular_file(path)
    if path.stat().st_size != size:
        raise DamagedError(f"{path.name} has {path.stat().st_size:,} bytes in place of {size:,}")
    if _file_digest(path, hashed) != digest:
        raise DamagedError(f"the checksum of {path.name} does not fit")
    return np.asarray(np.load(path, mmap_mode=None if hashed == size else "r", allow_pickle=False))


def _header_length(path: Path) -> int:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        return file.tell()


def _file_digest(path: Path, count: int) -> str:
    """Return the digest of the first `count` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while count and (block := file.read(min(count, _BLOCK))):
            digest.update(block)
            count -= len(block)
    return digest.hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
