"""Folders of classes or of images with masks: their files, folders that are splits, and names of the same class."""

import os
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stages.errors import UserError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
"""Suffixes of image files."""

MASK_SUFFIXES = (".png", ".bmp", ".gif")
"""Suffixes of mask files: formats that keep every pixel."""

TEXT_SUFFIXES = (".txt",)
"""Suffixes of text files."""

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Splits by the names of folders, column values and arrays, which are compared case-insensitively."""

LEFTOVERS = (
    "__macosx", "@eadir", "#recycle", "@recycle", "$recycle.bin", "system volume information", "lost+found",
    "__pycache__", "thumbs.db", "desktop.ini", "#snapshot", "@recently-snapshot", "thevolumesettingsfolder",
    "network trash folder", "temporary items",
)  # fmt: skip
"""Files and folders left by archives, file managers and network drives, compared case-insensitively."""


def entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder in the order of their names, without hidden entries and LEFTOVERS.

    Raises:
        UserError: If the folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are faster to sort and compare
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror})", "a folder that you can read") from error
    for name in names:
        if not name.startswith(".") and name.casefold() not in LEFTOVERS:
            yield folder / name


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` in the order of their paths, without hidden files and LEFTOVERS.

    Links are followed. A broken link, or a link to a folder above it, is yielded as a file that cannot be read.
    """
    if folder.is_dir():
        yield from _below(folder, {_place(path) for path in (folder, *folder.parents, *folder.resolve().parents)})


def _below(folder: Path, above: Set[tuple[int, int]]) -> Iterator[Path]:
    for path in entries(folder):
        is_link = path.is_symlink()
        if path.is_dir() and not (is_link and _place(path) in above):
            yield from _below(path, above | {_place(path)})
        elif is_link or path.is_file():
            yield path


def _place(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def name_of_file(path: Path) -> str:
    """Return a file's name without suffixes, or its folder's name if this is just the name of a split or `data`."""
    name = path.name.partition(".")[0] or path.name
    return path.absolute().parent.name or name if name.lower() in {*SPLITS, "data"} else name


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folders that contain class folders, by split. If `root` has no split folders, it is `train` itself.

    Raises:
        UserError: If some folders are splits and others are not, `train` is missing, or a split has two folders.
    """
    folders = [path for path in entries(root) if path.is_dir()]
    named = {path: SPLITS[path.name.casefold()] for path in folders if path.name.casefold() in SPLITS}
    # A single Train/ among other folders may be a class, such as the vehicle.
    if len(named) < len(folders) and len(named) < 2 and root / "train" not in named:
        return {"train": root}
    if not folders:
        return {"train": root}
    if len(named) < len(folders) or "train" not in named.values() or len({*named.values()}) < len(named):
        raise UserError(
            f"data.dir={root} has the folders {', '.join(f'{path.name}/' for path in folders)}",
            "only train/, val/ and test/, or one folder per class",
            "data.dir=<folder>",
        )
    return {split: path for split in ("test", "train", "val") for path in folders if named[path] == split}


def class_names(root: Path, splits: Mapping[str, Path]) -> list[str]:
    """Return the names of the class folders in any of the splits, in order.

    Raises:
        UserError: If there are fewer than two, or two names differ only in case, spaces or Unicode form.
    """
    folders = [path for split in splits.values() for path in entries(split) if path.is_dir()]
    first: dict[str, Path] = {}
    for folder in folders:
        other = first.setdefault(same_name(folder.name), folder)
        if other.name != folder.name:
            looks_alike = unicodedata.normalize("NFKC", other.name) == unicodedata.normalize("NFKC", folder.name)
            one, two, name = map(
                ascii if looks_alike else repr,
                (str(other.relative_to(root)), str(folder.relative_to(root)), other.name),
            )
            raise UserError(
                f"data.dir={root}: the class names {one} and {two} differ only in case, spaces or the Unicode form of "
                "a letter",
                f"one name per class; rename {two} to {name}, or to a different name",
            )
    names = sorted({folder.name for folder in folders})
    if len(names) < 2:
        inside = splits["train"] / names[0] if names else root
        is_above = len(splits) == 1 and sum(path.is_dir() for path in entries(inside)) > 1
        raise UserError(
            f"data.dir={root} has {len(names)} class folder(s){': ' if names else ''}{', '.join(names)}",
            "at least 2 class folders, or train/, val/ and test/ that contain them",
            f"data.dir={shlex.quote(str(inside))}" if is_above else "data.dir=<the folder above the class folders>",
        )
    return names


def classes_of(root: Path, suffixes: tuple[str, ...]) -> tuple[dict[str, Path], list[str]]:
    """Return the folders of the splits and the names of the classes, reading as few folders as possible.

    Args:
        root: The directory.
        suffixes: The suffixes of files that are examples.

    Raises:
        UserError: If folders or their names are wrong, a split has no examples, or the training split has examples of
            fewer than two classes.
    """
    splits = split_folders(root)
    names = class_names(root, splits)
    ends = ", ".join(suffixes)
    for split, top in splits.items():
        minimum = 2 if split == "train" else 1
        has_files = (name for name in names if any(is_example(path, suffixes) for path in files_below(top / name)))
        present = list(islice(has_files, minimum))
        if split == "train" and not present:
            raise UserError(
                f"data.dir={root} has no files that end in {ends} in its class folders", "at least one per class folder"
            )
        if split == "train" and len(present) < minimum:
            raise UserError(
                f"data.dir={root}: only the class {present[0]} has training examples (files that end in {ends})",
                "training examples of at least two classes",
            )
        if not present:
            raise UserError(
                f"the {split} split of {root.name} has no examples in its class folders", f"files below {top}"
            )
    return splits, names


@dataclass(kw_only=True)
class MaskSettings:
    """Settings of data sources whose targets may be masks."""

    classes: Any = None
    """Names of the classes of masks, in the order of their values: `[background, cat, dog]`. null: the values
    themselves."""
    mask_values: Any = None
    """A mapping from values in the masks to names of classes, such as `{0: background, 255: object}`, if the values are
    not 0, 1, 2, …. Pixels of a value whose name is null do not count."""

    def check_classes(self, path: str) -> None:
        """Refuse classes that masks cannot have.

        Raises:
            UserError: If names or values are not valid, or both are set.
        """
        if self.classes is not None and self.mask_values is not None:
            problem = f"{path}.classes and {path}.mask_values are both set"
            raise UserError(problem, "only one of them", f"{path}.classes=null")
        names = self.classes
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if names is not None and not (is_list and len({*map(str, names)}) == len(names) > 1):
            problem = f"{path}.classes={names} is not a list of names"
            raise UserError(problem, "at least two different names", f"'{path}.classes=[background,object]'")
        values = self.mask_values
        is_valid = isinstance(values, Mapping) and all(str(value).isdigit() and int(value) < 256 for value in values)
        if values is not None and not (is_valid and len({*map(str, values.values())} - {"None"}) > 1):
            expected = "a mapping from whole numbers below 256 to names of at least two classes"
            fix = f"'{path}.mask_values={{0: background, 255: object}}'"
            raise UserError(f"{path}.mask_values={values} is not valid", expected, fix)


def masks_of(root: Path, masks: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Return the images below `root` with their masks, by split. A mask has the path of its image below `masks`.

    The suffix of a mask may be any of MASK_SUFFIXES.

    Raises:
        UserError: If there are no images, or images have no mask.
    """
    found: dict[str, list[tuple[Path, Path]]] = {}
    without: list[Path] = []
    for split, top in split_folders(root).items():
        found[split] = []
        for path in files_below(top):
            if not is_example(path, IMAGE_SUFFIXES) or masks in path.parents:
                continue
            place = masks / path.relative_to(root)
            candidates = (place.with_suffix(suffix) for suffix in (*MASK_SUFFIXES, *map(str.upper, MASK_SUFFIXES)))
            mask = next((one for one in candidates if one.is_file()), None)
            if mask is None:
                without.append(path)
            else:
                found[split].append((path, mask))
        if not found[split] and not without:
            problem = f"data.dir={root} has no {'' if split == 'train' else f'{split} '}images"
            raise UserError(problem, f"files that end in {', '.join(IMAGE_SUFFIXES)}")
    if without:
        expected = (masks / without[0].relative_to(root)).with_suffix(MASK_SUFFIXES[0])
        count = f"{len(without):,} images have no mask" if len(without) > 1 else "an image has no mask"
        raise UserError(f"data.masks={masks}: {count}; the first is {without[0]}", f"a file {expected}")
    return found


def is_example(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file is an example, according to its name."""
    return path.suffix.lower() in suffixes


def same_name(name: str) -> str:
    """Return the normalized form of a name. Names are the same up to case, spaces and Unicode form."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join("".join(letter for letter in folded if unicodedata.category(letter) != "Cf").split())
