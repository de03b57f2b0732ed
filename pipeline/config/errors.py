"""Errors of Hydra and OmegaConf about a wrong configuration, as one line for the user."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException, ValidationError

from pipeline.config.options import read_options
from pipeline.config.schemas import top_level_key
from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.ranges import KINDS, wrong_type

_TYPES = {
    **{kind.__name__: text for kind, text in KINDS.items()},
    **dict(zip(("Integer", "Float", "Boolean", "String"), KINDS.values(), strict=True)),
}

_OF_SHAPES = {
    r"is not a ListConfig|(?s:Cannot merge DictConfig with ListConfig.*reference_type=List)": "a list",
    r"Cannot assign \w+ to Dict|Cannot merge DictConfig with ListConfig": "a mapping",
    r"(type hint 'typing\.|not a subclass of )Dict": "a mapping",
    r"Cannot convert '\w+Config' to string|not a subclass of str": KINDS[str],
    r"not a subclass of int": KINDS[int],
    r"not a subclass of float": KINDS[float],
}
"""From parts of OmegaConf's messages about a list, mapping or single value in a wrong place to what is expected."""

_OF_TYPES = ("could not be converted", "ValidationError", "Incompatible value", "is not Optional")
"""Parts of OmegaConf's messages about a value of another type than its setting."""


@contextmanager
def readable() -> Iterator[None]:
    """Raises UserError for exceptions that Hydra and OmegaConf let through from unreadable files and values."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserError):
        raise
    except Exception as error:
        raise explain(error) from error


def explain(error: BaseException, keys: Iterable[str] = (), addable: Iterable[str] = ()) -> UserError:
    """Returns the user's error for one of Hydra or OmegaConf.

    Args:
        error: an exception of Hydra or OmegaConf.
        keys: the dotted names that exist, of which the nearest is suggested.
        addable: names that exist once they are added with a plus sign.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_option(error)
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        place = f" ({mark.name}, line {mark.line + 1})" if mark is not None else ""
        problem = f"a file of the configuration is not YAML{place}: {getattr(error, 'problem', error)}"
        return UserError(problem, "YAML")
    if isinstance(error, UnicodeDecodeError):
        return UserError("a file of the configuration is not written in UTF-8", "YAML in UTF-8")
    if isinstance(error, RecursionError):
        return UserError("the configuration refers to itself", "interpolations without a circle")
    text = " ".join(str(part) for part in _chain(error))
    return _unknown_name(text, list(keys), list(addable)) or _wrong_value(error, text)


def _unknown_name(text: str, keys: list[str], addable: list[str]) -> UserError | None:
    """Returns the error for a message about an unknown or an existing name; None for other messages."""
    full_key = re.search(r"full_key: (\S+)", text)
    if reference := re.search(r"Interpolation key '([^']+)' not found", text):
        holder = full_key.group(1) if full_key else ""
        return UserError(
            f"{holder or 'a setting'} refers to ${{{reference.group(1)}}}, which does not exist",
            "${<a dotted name>}",
            f"{holder}=<value>" if holder else "",
        )
    overridden = re.search(r"Could not override '([^']+)'", text)
    if unknown := overridden or re.search(r"Key '([^']+)' (?:is )?not in", text):
        return unknown_key((overridden or full_key or unknown).group(1), keys, addable)
    if absent := re.search(r"Could not delete from config. '([^']+)' does not", text):
        return UserError(f"~{absent.group(1)}: there is no {absent.group(1)}", "", "python -m pipeline --cfg job")
    if deleted := re.search(r"Error merging override ~([\w.]+)", text):
        name = deleted.group(1)
        return UserError(f"~{name}: a setting cannot be removed", "another value", f"{name}=<value>")
    if present := re.search(r"An item is already at '([^']+)'", text):
        name = present.group(1)
        return UserError(f"+{name}: there is a {name} already", "no plus sign", f"{name}=<value>")
    if misplaced := re.search(r"Override (\S+?)@\S* looks like a config group", text):
        return unknown_key(misplaced.group(1), keys)
    return None


def _wrong_value(error: BaseException, text: str) -> UserError:
    """Returns the error for a message about a value, or about anything else."""
    if wrong_shape := _wrong_shape(error, text):
        return wrong_shape
    if isinstance(error, ValidationError) or any(part in text for part in _OF_TYPES):
        return _wrong_type(text)
    if ambiguous := re.search(r"Ambiguous value for argument '([^']+)'", text):
        override = ambiguous.group(1)
        return UserError(
            f"{override} gives several values to one run",
            "one value, a list in brackets, or a sweep with -m",
            f"python -m pipeline -m {override}",
        )
    full_key = re.search(r"full_key: (\S+)", text)
    if missing := re.search(r"(?i)missing mandatory value: (\S+)", text):
        name = (full_key or missing).group(1)
        return UserError(f"{name} has no value", "a value", f"{name}=<value>")
    subject = f"{full_key.group(1)} is wrong" if full_key else "the configuration is wrong"
    return UserError(f"{subject} ({_first_sentence(error)})", "", "python -m pipeline --cfg job")


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _missing_option(error: MissingConfigException) -> UserError:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    options = sorted(error.options or [])
    if not group or not options:
        return UserError(f"there is no configuration {error.missing_cfg_file}", "", "python -m pipeline --help")
    near = difflib.get_close_matches(option, options, 1, cutoff=0.4) or options
    return UserError(f"unknown option '{group}={option}'", options, f"{group}={near[0]}")


def unknown_key(name: str, keys: list[str], addable: Sequence[str] = ()) -> UserError:
    """Returns the error for a dotted name that is not in `keys`, with the nearest one."""
    if name.endswith("._target_"):
        return _no_function(name.removesuffix("._target_"))
    if name in addable:
        return UserError(f"{name} is in no file of the configuration", "a plus sign, which adds it", f"+{name}=<value>")
    keys = [*keys, *addable]
    if name in keys:  # a mapping with arbitrary names
        return UserError(f"{name} is a mapping, to which names are added", "a plus sign", f"'+{name}={{name: value}}'")
    parent = name.rpartition(".")[0]
    near = _nearest(name, keys)
    if parent in keys and not _children(parent, keys):  # a mapping that is empty by default
        return UserError(f"{name} is new", f"new names under {parent}, with a plus sign", f"+{name}=…")
    place = parent if parent in keys else near.rpartition(".")[0]
    prefix = f"{place}." if place else ""
    allowed = [f"{prefix}{key}" for key in _children(place, keys) if not key.startswith("_")]
    fix = f"{'+' if near in addable else ''}{near}=…" if near else "python -m pipeline --cfg job"
    return UserError(f"unknown setting '{name}'", allowed, fix)


def _no_function(group: str) -> UserError:
    """Returns the error for a `_target_` where the chosen option of a group has none."""
    options = read_options([CONF]).groups.get(group, ())
    fix = f"{group}=custom {group}._target_=…" if "custom" in options else f"{group}={options[0]}" if options else ""
    return UserError(
        f"{group}._target_: {group} is given by its settings, not by a function",
        [f"{group}={option}" for option in options] or "its own settings",
        fix,
    )


def _nearest(name: str, keys: list[str]) -> str:
    """Returns the existing name closest to `name`, one with another parent first, or an empty string."""
    key_name = name.rpartition(".")[2]
    same_name = [key for key in keys if key.rpartition(".")[2] == key_name]
    return (same_name or difflib.get_close_matches(name, keys, 1, cutoff=0.8) or [""])[0]


def _children(name: str, keys: list[str]) -> list[str]:
    prefix = f"{name}." if name else ""
    return [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]


def _wrong_type(text: str) -> UserError:
    if empty := re.search(r"field '([\w.]+)' is not Optional", text):
        return UserError(f"{empty.group(1)}=null: it cannot be empty", "a value", f"{empty.group(1)}=<value>")
    value = re.search(r"Value '(.*?)' (?:of type '[^']*' )?(?:could not be converted to|is not a valid) (\w+)", text)
    absent = re.search(r"Incompatible value 'None' for field of type '(\w+)'", text)
    key = re.search(r"full_key: (\S+)", text)
    name = key.group(1) if key else "a setting"
    if absent is not None:
        return wrong_type(name, "null", _TYPES.get(absent.group(1), absent.group(1)))
    if value is None:
        return UserError(f"{name}: {text.splitlines()[0]}", "", "python -m pipeline --cfg job")
    return wrong_type(name, value.group(1), _TYPES.get(value.group(2), value.group(2)))


def _wrong_shape(error: BaseException, text: str) -> UserError | None:
    """Returns the error for a message about a list, a mapping or a single value in the place of another."""
    expected = next((kind for part, kind in _OF_SHAPES.items() if re.search(part, text)), None)
    if expected is None:
        return None
    typed = re.match(r"Error merging override [+~]*([^\s=]+)=(.*)", str(error))
    full_key = re.search(r"full_key: (\S+)", text)
    value = re.search(r"to string: '(.*)'$", text, re.MULTILINE)
    key = full_key[1] if full_key else "a setting"
    name, given = typed.groups() if typed else (top_level_key(key), value[1] if value else "…")
    if key.endswith("]") or key.isdecimal():
        fix = f"{name}=[<{expected.removeprefix('a ')}>]"
        return UserError(f"{name}={given} has the wrong type", f"a list of which each item is {expected}", fix)
    return wrong_type(name, given, expected)


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
