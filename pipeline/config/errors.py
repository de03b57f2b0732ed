"""One-line errors for the exceptions of Hydra and OmegaConf: unknown names, wrong types, unknown options."""

import difflib
import re
import shlex
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    ConfigTypeError,
    OmegaConfBaseException,
    ValidationError,
)

from pipeline.config.names import plain_word, suggestion_for_other_name, suggestion_for_path
from pipeline.config.schemas import SCHEMAS, top_level_key
from pipeline.paths import CONF
from stages.errors import UserError
from stages.settings.ranges import KINDS, nearest, wrong_type


@contextmanager
def explained(keys: Iterable[str] = ()) -> Iterator[None]:
    """Turn exceptions of Hydra and OmegaConf, and those for unreadable files, into UserError; see `explain`."""
    try:
        yield
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the configuration cannot be read ({_first_line(error)})", "a YAML file in UTF-8") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, keys) from error


def explain(error: BaseException, keys: Iterable[str] = (), typed: str = "") -> UserError:
    """Return the UserError for an exception of Hydra or OmegaConf.

    Args:
        error: The exception.
        keys: The existing dotted names; the nearest one is suggested.
        typed: The override that caused the error, such as `train.epochs=x`; empty if a file caused it.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = str(error.missing_cfg_file).partition("/")
        return unknown_option(group, option, error.options)
    cause = next((link for link in _chain(error) if getattr(link, "full_key", None) is not None), error)
    given, _, text = typed.lstrip("+~").partition("=")
    inner = str(getattr(cause, "full_key", None) or "")
    name = given if given and not inner.startswith(f"{given}.") else top_level_key(inner)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and name:
        return unknown_key(name, list(keys), text)
    expected = _expected(cause) if isinstance(cause, ValidationError | ConfigTypeError) else ""
    if expected:
        value = text if typed else getattr(cause, "value", None)
        return wrong_type(name, "null" if value is None else value, expected)
    fix = f"{name}=<value>" if name else "python -m pipeline --cfg job"
    return UserError(f"{typed or name or 'the configuration'}: {_first_line(cause)}", "", fix)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _expected(error: Any) -> str:
    """Return the type of value that a setting requires, according to its schema; empty if no schema defines it."""
    hints = typing.get_type_hints(error.object_type) if isinstance(error.object_type, type) else {}
    hint = hints.get(error.key, getattr(error, "ref_type", None))
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    kind = typing.get_origin(hint) or hint
    return {list: "a list", dict: "a mapping", **KINDS}.get(kind, "")  # type: ignore[arg-type]


def unknown_option(group: str, option: str, options: Sequence[str]) -> UserError:
    """Return the error for an option that a group does not have; it suggests the name used here, or the nearest one."""
    parts = [one for one in options if plain_word(one) in plain_word(option)]  # `MNIST`, `tpu_strategy`, `grid_search`
    near = [max(parts, key=len)] if parts else difflib.get_close_matches(option, options, 1) or ["<option>"]
    path = suggestion_for_path(option) if group == "data" else ""
    fix = path or suggestion_for_other_name(group, option) or f"{group}={near[0]}"
    return UserError(f"unknown option '{group}={option}'", sorted(options, key=lambda one: (one != near[0], one)), fix)


def unknown_key(name: str, keys: list[str], value: str = "") -> UserError:
    """Return the error for an unknown setting; it suggests the option that has it, its name here, or the nearest name.

    Args:
        name: The dotted name that is not in `keys`.
        keys: The existing dotted names.
        value: The value as typed.
    """
    if name in keys:
        problem = f"+{name} adds a setting that already exists"
        return UserError(problem, "the name without a plus sign", f"{name}={value or '…'}")
    group, _, field = name.partition(".")
    schemas = SCHEMAS.get(group, {}).items()
    if matching := [option for option, schema in schemas if field in vars(schema)["__dataclass_fields__"]]:
        starts = re.compile(rf"(?m)/schema/{group}@_here_: ({'|'.join(matching)})$")
        files = [path for path in (CONF / group).glob("*.yaml") if starts.search(path.read_text())]
        chosen = sorted(f"{group}={path.stem}" for path in files)
        option = chosen[0] if len(chosen) == 1 else f"{group}=<option>"
        return UserError(
            f"{name} is not a setting of the chosen option of {group}", chosen, f"{option} {name}={value or '…'}"
        )
    near, parent = _nearest(name, keys), name.rpartition(".")[0]
    place = parent if parent in keys else near.rpartition(".")[0]
    allowed = [key for key in keys if key.rpartition(".")[0] == place and not key.rpartition(".")[2].startswith("_")]
    fix = suggestion_for_other_name(name, value)
    if not fix and near:
        fix = shlex.quote(f"{near}={value}") if value else f"{near}=…"
    meant = fix.partition("=")[0].strip("'")
    listed = [meant, *(key for key in allowed if key != meant)] if meant in keys else allowed
    return UserError(f"unknown setting '{name}'", listed, fix or "python -m pipeline --cfg job")


def _nearest(name: str, keys: list[str]) -> str:
    """Return the existing name closest to `name`; empty if there is none or it is ambiguous.

    The same last part under a different parent comes first, then similar names under the same parent.
    """
    parent, _, key_name = re.sub("[/:]", ".", name).rpartition(".")
    same_name = [key for key in keys if key.rpartition(".")[2] == key_name]
    inside = [key for key in same_name if key.startswith(f"{parent}.")]
    if inside or same_name:
        return (inside or same_name)[0] if len(inside or same_name) == 1 else ""
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == parent}
    longer = [key for word, key in siblings.items() if len(key_name) > 3 and plain_word(key_name) in plain_word(word)]
    if longer or (near := nearest(key_name, [*siblings])):
        return longer[0] if longer else siblings[near]
    others = {key.rpartition(".")[2]: key for key in keys if not name.startswith(f"{key}.")}
    return next((others[word] for word in difflib.get_close_matches(key_name, others, 1, cutoff=0.8)), "")


def parts(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig, Any]]:
    """Yield the dotted name of every key below `node`, such as `train.epochs`, with its node and its key there."""
    names: list[Any] = list(node)
    for key in names:
        yield f"{prefix}{key}", node, key
        is_here = not OmegaConf.is_interpolation(node, key) and not OmegaConf.is_missing(node, key)
        if is_here and isinstance(part := node[key], DictConfig):
            yield from parts(part, f"{prefix}{key}.")


def dotted(document: DictConfig) -> Iterator[str]:
    """Return the dotted name of every key that users set; keys that refer to another key are left out."""

    def refers(node: DictConfig, key: Any) -> bool:
        return OmegaConf.is_interpolation(node, key) and ":" not in as_written(node, key)

    return (name for name, node, key in parts(document) if not refers(node, key))


def as_written(node: DictConfig, key: Any) -> Any:
    """Return the value of a key with its interpolations unresolved, such as `${optimizer}`; nodes become containers."""
    values: Any = OmegaConf.to_container(node, resolve=False)
    return values[key]
