"""Names of settings and options: those there are, what other projects call them, and texts that are refused."""

import functools
import importlib.util
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stages.errors import UserError

LONGEST = 20_000
"""Characters of one argument or value."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def check_texts(values: Any, name: str = "") -> None:
    """Refuse a text that files, stores and terminals cannot hold, wherever it stands in `values`.

    Raises:
        UserError: for one that is too long or has control characters; `name` is where it stands.
    """
    if isinstance(values, Mapping):
        for key, part in values.items():
            place = f"{name}.{key}".lstrip(".")
            check_texts(str(key), place)
            check_texts(part, place)
    elif isinstance(values, (list, tuple)):
        for part in values:
            check_texts(part, name)
    elif isinstance(values, str) and (len(values) > LONGEST or _CONTROL.search(values)):
        shown = _CONTROL.sub("", (name or values.partition("=")[0])[:200])
        problem = (
            "has characters that cannot be shown" if _CONTROL.search(values) else f"has {len(values):,} characters"
        )
        raise UserError(f"{shown} {problem}", f"a text of {LONGEST:,} characters at most", f"{shown}=<text>")


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names and values; an empty mapping is a value."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def split_override(override: str) -> tuple[str, str]:
    """Returns the name in an override, without plus signs or tilde, and its value; empty where it has none."""
    name, _, value = override.lstrip("+~").partition("=")
    return name, value


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


def read_options(folders: Sequence[Path]) -> Options:
    """Returns the options below `folders`, of which the first one has the primary configuration."""
    defaults = _defaults(folders[0] / "config.yaml")
    options: dict[str, set[str]] = {group: set() for group in defaults}
    for folder in folders:
        for path in folder.rglob("*.yaml"):
            group, *path_in_group = path.relative_to(folder).with_suffix("").parts
            if path_in_group and group not in ("hydra", "schema") and not group.startswith((".", "_")):
                options.setdefault(group, set()).add("/".join(path_in_group))
    groups = {group: _in_order(names, defaults.get(group)) for group, names in options.items()}
    return Options(groups, defaults, _about(folders[0] / "config.yaml"))


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
        places = [str(Path(location if separator else address).expanduser())]
    if not places or not Path(places[0]).is_dir():
        expected = "a folder of options, or pkg://<package>"
        raise UserError(f"--config-dir {address} is not a directory", expected, "--config-dir <folder>")
    return Path(places[0]).absolute()


def _in_order(names: set[str], default: str | None) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (name != default, name)))


def _defaults(path: Path) -> dict[str, str | None]:
    document = yaml.safe_load(path.read_text()) if path.is_file() else None
    listed = document.get("defaults", []) if isinstance(document, dict) else []
    entries = [entry for entry in listed if isinstance(entry, dict) and len(entry) == 1]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    plain = [(key.removeprefix("optional ").lstrip("/"), value) for key, value in pairs if "override " not in key]
    return {key: value for key, value in plain if "@" not in key and (value is None or isinstance(value, str))}


@functools.cache
def _other_words() -> Mapping[str, Any]:
    words: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("other_words.yaml").read_text())
    return words


def named_elsewhere(name: str, value: str) -> str | None:
    """Return what to type instead of a setting that another project has, with the value as it was typed.

    Empty where this project needs no such setting, None where the name is not known.
    """
    plain = re.split(r"[./:]", name)[-1].lower().replace("-", "_")
    fix = next((fix for fix, names in _other_words()["settings"].items() if plain in names.split()), None)
    return fix and fix.replace("{}", shlex.quote(value) if value else "…")


def option_elsewhere(group: str, option: str, options: Collection[str]) -> str:
    """Return what to type instead of an option that other projects have; empty where none is known."""
    plain = option.lower().replace("-", "_").replace(" ", "_")
    known = _other_words()["options"].get(group, {})
    here = next((here for here, names in known.items() if plain in str(names).lower().split()), "")
    if here in options:
        return f"{group}={here}"
    package, typed = _IN_KERAS.get(group, ("", ""))
    name = _keras_name(package, option) if package else ""
    return typed.format(name) if name else ""


_IN_KERAS = {
    "optimizer": ("optimizers", "optimizer=custom optimizer._target_=keras.optimizers.{}"),
    "schedule": ("optimizers/schedules", "schedule=custom schedule._target_=keras.optimizers.schedules.{}"),
    "model": ("applications", "model=application model.network.name={}"),
}
"""From groups to the package of Keras in which options may be found, and what to type for one."""


def _keras_name(package: str, option: str) -> str:
    """Return the class of Keras that `option` means, such as `RMSprop`, by the names that the package lists."""
    spec = importlib.util.find_spec("keras")
    folder = Path((spec.submodule_search_locations or ["."])[0]) if spec else Path()
    listing = folder / package / "__init__.py"
    names = re.findall(r"(\w+) as \1", listing.read_text()) if listing.is_file() else []
    plain = re.sub(r"[\W_]", "", option).lower()
    return next((name for name in names if name.lower() == plain and not name.islower()), "")
