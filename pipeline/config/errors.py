"""Errors of Hydra and OmegaConf in one line: an unknown name, a value of the wrong type, an unknown option."""

import dataclasses
import difflib
import re
import shlex
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    ConfigTypeError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from pipeline.config.names import named_elsewhere, option_elsewhere
from pipeline.config.schemas import SCHEMAS, top_level_key
from pipeline.targets import load, settings_class
from stages.errors import UserError
from stages.settings.ranges import KINDS, wrong_type


@contextmanager
def readable() -> Iterator[None]:
    """Raises UserError for exceptions that Hydra and OmegaConf let through from unreadable files and values."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, UserError):
        raise
    except RecursionError as error:
        raise UserError("the configuration refers to itself", "interpolations without a circle") from error
    except Exception as error:
        raise UserError(f"a file of the configuration is unreadable ({_first_line(error)})", "YAML in UTF-8") from error


def explain(error: BaseException, keys: Iterable[str] = (), typed: str = "") -> UserError:
    """Returns the user's error for one of Hydra or OmegaConf.

    Args:
        keys: the dotted names that exist, of which the nearest is suggested.
        typed: the override that caused it, such as `train.epochs=x`; empty: a file did.
    """
    if isinstance(error, UserError):
        return error
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        return unknown_option(group, option, sorted(error.options))
    cause = next((link for link in _chain(error) if getattr(link, "full_key", None) is not None), error)
    given, _, text = typed.lstrip("+~").partition("=")
    inner = str(getattr(cause, "full_key", None) or "")
    name = given if given and not inner.startswith(f"{given}.") else top_level_key(inner)
    value = text if typed else getattr(cause, "value", None)
    if isinstance(cause, InterpolationResolutionError | MissingMandatoryValue):
        missing = isinstance(cause, MissingMandatoryValue)
        return UserError(f"{name} {'has no value' if missing else _quoted(cause)}", "a value", f"{name}=<value>")
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and name:
        return unknown_key(name, list(keys), text)
    if typed.startswith("~"):
        return UserError(f"~{name}: a setting cannot be removed", "another value", f"{name}=<value>")
    expected = _expected(cause) if isinstance(cause, ValidationError | ConfigTypeError) else ""
    if not expected:
        subject = typed or name or "the configuration"
        fix = f"{name}=<value>" if name else "python -m pipeline --cfg job"
        return UserError(f"{subject}: {_first_line(cause)}", "", fix)
    if str(getattr(cause, "full_key", "")).endswith("]"):
        return UserError(f"{name}={value} has the wrong type", f"a list of which each item is {expected}",
                         f"{name}=[<{expected.removeprefix('a ')}>]")  # fmt: skip
    return wrong_type(name, "null" if value is None else value, expected)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _quoted(error: BaseException) -> str:
    line = _first_line(error)
    return f"cannot be resolved ({line[0].lower()}{line[1:]})"


def _expected(error: Any) -> str:
    """Returns the kind of value that a setting takes, by the schema in which it stands; empty where none says so."""
    hint = getattr(error, "ref_type", None)
    if isinstance(error.object_type, type) and error.key in typing.get_type_hints(error.object_type):
        hint = typing.get_type_hints(error.object_type)[error.key]
    elif isinstance(error.key, int):
        hint = typing.get_args(hint)[-1] if typing.get_args(hint) else None
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    kind = typing.get_origin(hint) or hint
    return {list: "a list", dict: "a mapping", **KINDS}.get(kind, "")  # type: ignore[arg-type]


def unknown_option(group: str, option: str, options: Collection[str], default: str = "") -> UserError:
    """Returns the error for an option that a group does not have: what it is called here, or the nearest one."""
    near = difflib.get_close_matches(option, options, 1, cutoff=0.6) or [default or next(iter(options))]
    fix = option_elsewhere(group, option, options) or f"{group}={near[0]}"
    return UserError(f"unknown option '{group}={option}'", options, fix)


def unknown_key(name: str, keys: list[str], value: str = "", addable: Sequence[str] = ()) -> UserError:
    """Returns the error for a dotted name that is not in `keys`: where it is, what it is called here, or the nearest.

    Args:
        value: as it was typed.
        addable: names that exist once they are added with a plus sign.
    """
    typed = value or "…"
    if name in addable:
        return UserError(f"{name} is in no file of the configuration", "a plus sign, which adds it", f"+{name}={typed}")
    keys = [*keys, *addable]
    if name in keys:  # a mapping with arbitrary names
        return UserError(f"{name} is a mapping, to which names are added", "a plus sign", f"'+{name}={{name: value}}'")
    if (dots := name.replace("/", ".").replace(":", ".")) in keys:
        return UserError(f"unknown setting '{name}'", "dots between names", f"{dots}={typed}")
    parent = name.rpartition(".")[0]
    if parent in keys and not _children(parent, keys):  # a mapping that is empty by default
        return UserError(f"{name} is new", f"new names under {parent}, with a plus sign", f"+{name}={typed}")
    group, _, field = name.partition(".")
    if owners := [
        option for option, schema in SCHEMAS.get(group, {}).items() if field in vars(schema)["__dataclass_fields__"]
    ]:
        chosen = [f"{group}={option}" for option in owners]
        return UserError(f"{name} is a setting of another option of {group}", chosen, f"{chosen[0]} {name}={typed}")
    near = _nearest(name, keys)
    place = parent if parent in keys else near.rpartition(".")[0]
    allowed = [".".join(filter(None, (place, key))) for key in _children(place, keys) if not key.startswith("_")]
    fix = named_elsewhere(name, value)
    if fix == "":
        return UserError(f"unknown setting '{name}': images are read ahead on all cores", "no such setting")
    if not fix and near:
        fix = f"{'+' if near in addable else ''}{shlex.quote(f'{near}={value}') if value else f'{near}=…'}"
    return UserError(f"unknown setting '{name}'", allowed, fix or "python -m pipeline --cfg job")


def _nearest(name: str, keys: list[str]) -> str:
    """Returns the existing name closest to `name`, one with another parent first, or an empty string."""
    key_name = re.split(r"[./:]", name)[-1]
    same_name = [key for key in keys if key.rpartition(".")[2] == key_name]
    return (same_name or difflib.get_close_matches(name, keys, 1, cutoff=0.8) or [""])[0]


def _children(name: str, keys: list[str]) -> list[str]:
    prefix = f"{name}." if name else ""
    return [key[len(prefix) :] for key in keys if key.startswith(prefix) and "." not in key[len(prefix) :]]


def dotted(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yields the name of every key below `node`, such as `train.epochs`."""
    names: list[Any] = list(node)
    for key in names:
        if OmegaConf.is_interpolation(node, key):
            continue  # set under the name that it refers to
        yield f"{prefix}{key}"
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            yield from dotted(node[key], f"{prefix}{key}.")


def declared(document: DictConfig) -> Iterator[str]:
    """Yields the settings that custom stages declare and the configuration does not have."""
    for name in map(str, document):
        node = None if OmegaConf.is_interpolation(document, name) else document._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and isinstance(node.get("_target_"), str):
            names = _settings_of(name, node["_target_"])
            yield from (f"{name}.{entry}" for entry in names if entry != "_target_" and entry not in node)


def _settings_of(stage: str, target: str) -> list[str]:
    """Return the names of the dataclass that a custom stage declares; an error of its import is told elsewhere."""
    with suppress(UserError):
        schema = None if target.startswith(("stages.", "pipeline.")) else settings_class(load(stage, target))
        return [entry.name for entry in dataclasses.fields(schema)] if schema else []
    return []
