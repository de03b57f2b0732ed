"""Names of settings and options: the existing ones, and suggestions for names that other projects use."""

import dataclasses
import filecmp
import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.places import is_folder, resolved
from stages.settings.ranges import assignment


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of nested mappings; an empty mapping counts as a value."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def split_override(override: str) -> tuple[str, str]:
    """Return the name in an override, without plus signs or tilde, and its value (empty if it has none)."""
    name, _, value = override.lstrip("+~").partition("=")
    return name, value


@dataclass(frozen=True)
class Options:
    """The available options."""

    groups: Mapping[str, tuple[str, ...]]
    """The options of each group, the default one first; groups are in the order of the defaults list."""
    defaults: Mapping[str, str | None]
    """The option of each group in the defaults list; None for no option."""
    about: Mapping[str, str]
    """The comment on the line of each group in the defaults list."""


def read_options(folders: Sequence[Path]) -> Options:
    """Return the options below `folders`. The first folder has the primary configuration.

    Raises:
        UserError: For a file that would be ignored, because an earlier folder has a different one with its name.
    """
    defaults = _defaults(folders[0] / "config.yaml")
    options: dict[str, set[str]] = {group: set() for group in defaults}
    paths: dict[Path, Path] = {}
    for folder in folders:
        for path in folder.rglob("*.yaml"):
            name = path.relative_to(folder)
            first = paths.setdefault(name, path)
            if first is not path and path.exists() and not filecmp.cmp(first, path, shallow=False):
                problem = f"{path} has the same name as {first}, so it would be ignored"
                raise UserError(problem, "a different file name", f"mv {path} <file>")
            group, *path_in_group = name.with_suffix("").parts
            if path_in_group and group not in ("hydra", "schema") and not group.startswith((".", "_")):
                options.setdefault(group, set()).add("/".join(path_in_group))
    groups = {
        group: tuple(sorted(names, key=lambda name: (name != defaults.get(group), name)))
        for group, names in options.items()
    }
    about = dict(re.findall(r"(?m)^ *- (\w+): \w+ *# *(.+)$", (folders[0] / "config.yaml").read_text()))
    return Options(groups, defaults, about)


def options_folder(path: str) -> Path:
    """Return the absolute path of a folder of options.

    Raises:
        UserError: If there is no such folder.
    """
    if not (place := resolved(path)).is_dir():
        raise UserError(f"--config-dir {path} is not a directory", "a folder of options", "--config-dir <folder>")
    return place.absolute()


@functools.cache
def default_options() -> dict[str, str | None]:
    """Return the default option of each group; None for no option."""
    return _defaults(CONF / "config.yaml")


def _defaults(path: Path) -> dict[str, str | None]:
    entries = [entry for entry in yaml.safe_load(path.read_text())["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key).removeprefix("optional "), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if not key.startswith(("/", "override ")) and "@" not in key}


def suggestion_for_other_name(name: str, value: str) -> str:
    """Return what to type instead of a setting or an option that has a different name in another project.

    It is empty if the name is unknown. A setting may have its own suggestion for being turned off: `logger=false`.

    Args:
        name: The name of the setting or the group.
        value: The value of the setting, or the option of the group.
    """
    last = re.split(r"[./:]", name)[-1]
    words = plain_word(f"{last}={value}"), plain_word(last)
    others = yaml.safe_load(Path(__file__).with_name("other_words.yaml").read_text())
    known = {plain_word(word): fix for fix, listed in others.items() for word in listed.split()}
    fix = next((known[word] for word in words if word in known), "")
    return fix.replace("{}", "…" if value in ("", "true", "false", "null", "none") else shlex.quote(value))


def is_setting(name: str) -> bool:
    """Return whether a name may be that of a setting or a group of options."""
    from pipeline.config.schemas import TopSettings, top_level_key  # needed for errors only

    tops = {top_level_key(field.name) for field in dataclasses.fields(TopSettings)}
    return "." in name or name in tops or name in _defaults(CONF / "config.yaml")


def suggestion_for_path(word: str) -> str:
    """Return what to type if a word is a path to data instead of a setting or an option; empty if it is not."""
    from stages.settings.table_files import format_of  # needed for errors only

    if (form := format_of(Path(word))) == "npz":
        return f"data=arrays {assignment('data.files', word)}"
    if form is not None:
        return f"data=table {assignment('data.files', word)} data.target=<column>"
    return f"data=image_folder {assignment('data.dir', word)}" if "/" in word or is_folder(word) else ""


def plain_word(word: str) -> str:
    """Return a spelling-insensitive form of a word: `maxepochs` for `max_epochs`, `max-epochs` and `maxEpochs`."""
    return re.sub(r"[^\w=]|_", "", word).lower()
