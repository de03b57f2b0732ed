"""Options of every group in the folders of the configuration, without composing it."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from stages.errors import UserError


@dataclass(frozen=True)
class Options:
    """The options that can be chosen.

    groups: from each group, in the order of the defaults list, to its options, the default one first.
    defaults: from each group of the defaults list to its option; None: no option.
    about: from each group to the comment on its line of the defaults list.
    """

    groups: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, str | None]
    about: Mapping[str, str]


def read_options(folders: Sequence[Path], primary: str = "config") -> Options:
    """Returns the options below `folders`.

    Args:
        folders: of options; the first one has the primary configuration.
        primary: its name, without `.yaml`.
    """
    defaults = _defaults(folders, primary)
    options: dict[str, set[str]] = {group: set() for group in defaults}
    for folder in folders:
        for path in folder.rglob("*.yaml"):
            group, *path_in_group = path.relative_to(folder).with_suffix("").parts
            if path_in_group and group not in ("hydra", "schema") and not group.startswith((".", "_")):
                options.setdefault(group, set()).add("/".join(path_in_group))
    groups = {group: _in_order(names, defaults.get(group)) for group, names in options.items()}
    return Options(groups, defaults, _about(folders[0] / f"{primary}.yaml"))


def description(path: Path) -> str:
    """Returns the first comment line of an option's file, other than Hydra's `@package`."""
    lines = [line.strip("# \n") for line in path.read_text().splitlines() if line.startswith("#")]
    return next((line for line in lines if not line.startswith("@")), "")


def _about(primary: Path) -> dict[str, str]:
    text = primary.read_text() if primary.is_file() else ""
    return dict(re.findall(r"(?m)^ *- (\w+): \w+ *# *(.+)$", text))


def package_folder(address: str) -> Path:
    """Returns the folder of `address`: `pkg://my_package.conf`, `file:///there/conf`, or a path.

    Raises:
        UserError: where there is no such folder.
    """
    scheme, separator, location = address.partition("://")
    if separator and scheme == "pkg":
        try:
            spec = importlib.util.find_spec(location.replace("/", "."))
        except (ImportError, ValueError):
            spec = None
        places = list(spec.submodule_search_locations or []) if spec else []
    else:
        places = [location if separator else address]
    if not places or not Path(places[0]).is_dir():
        raise UserError(
            f"{address} is not a folder of options",
            "a folder, or 'hydra.searchpath=[pkg://my_package.conf]'",
            "--config-dir <folder>",
        )
    return Path(places[0])


def _in_order(names: set[str], default: str | None) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (name != default, name)))


def _defaults(folders: Sequence[Path], primary: str) -> dict[str, str | None]:
    path = folders[0] / f"{primary}.yaml"
    document = yaml.safe_load(path.read_text()) if path.is_file() else None
    listed = document.get("defaults", []) if isinstance(document, dict) else []
    entries = [entry for entry in listed if isinstance(entry, dict) and len(entry) == 1]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    plain = [(key.removeprefix("optional ").lstrip("/"), value) for key, value in pairs if "override " not in key]
    return {key: value for key, value in plain if "@" not in key and (value is None or isinstance(value, str))}
