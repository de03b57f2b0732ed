"""`python -m tests.editor_schema`: rewrites conf/schema.json, which editors use to complete and check YAML files.

It is generated from the dataclasses of the settings. A group accepts the settings of any of its options, because the
chosen option is only in the defaults list of a file.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from typing import Any

from pipeline.config.schemas import SCHEMAS, TopSettings, top_level_key
from pipeline.paths import CONF

PATH = CONF / "schema.json"

Json = dict[str, Any]

BOUNDS = {"at least": "minimum", "above": "exclusiveMinimum", "at most": "maximum", "below": "exclusiveMaximum"}
PLAIN = {int: "integer", float: "number", bool: "boolean", str: "string", types.NoneType: "null"}
ELSEWHERE: Json = {"type": "string", "pattern": r"^(.*\$\{.*|\?\?\?)$"}
"""An interpolation or a missing value (`???`), which may replace any value."""


def schema() -> Json:
    """Return the JSON schema of a file such as `conf/experiment/mine.yaml`."""
    top = _properties(TopSettings)
    groups = {group: _group(list(schemas.values())) for group, schemas in SCHEMAS.items() if (CONF / group).is_dir()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment",
        "type": "object",
        "properties": {"defaults": {"type": "array"}, **top, **groups},
    }


def _group(schemas: list[type]) -> Json:
    found: dict[str, list[Json]] = {}
    for each in schemas:
        for name, value in _properties(each).items():
            found.setdefault(name, []).append(value)
    properties = {name: _any_of(values) for name, values in found.items()}
    strict = {"propertyNames": {"enum": list(properties)}}
    return {"type": ["object", "null"], "properties": properties, "if": {"required": ["_target_"]}, "else": strict}


def _properties(settings: type) -> dict[str, Json]:
    said = _descriptions(settings)
    hints = typing.get_type_hints(settings)
    found = {}
    for field in dataclasses.fields(settings):
        value = _any_of([*_of_type(hints[field.name], field.metadata), ELSEWHERE])
        texts = [said.get(field.name) or field.metadata.get("unit", "")]
        has_default = field.default is not dataclasses.MISSING and field.default != "???"
        texts += [f"Default: {json.dumps(field.default)}"] if has_default else []
        name = field.name if field.name == "_target_" else top_level_key(field.name)
        found[name] = {"description": ". ".join(text.rstrip(".") for text in texts if text), **value}
    return found


def _of_type(hint: Any, facts: Any) -> list[Json]:
    """Return the schemas of the values that a field with this type and these `facts` (its metadata) accepts."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [found for part in typing.get_args(hint) for found in _of_type(part, facts)]
    if dataclasses.is_dataclass(hint):
        return [_group([typing.cast(type, hint)])]
    if typing.get_origin(hint) is list:
        [part] = typing.get_args(hint)
        return [{"type": "array", "items": _any_of([*_of_type(part, facts), ELSEWHERE])}]
    if typing.get_origin(hint) is dict:
        return [{"type": "object"}]
    if hint not in PLAIN:
        return [{}]
    found: Json = {"type": PLAIN[hint]}
    if hint in (int, float):
        found |= {BOUNDS[word]: bound for word, bound in facts.get("bounds", {}).items()}
    elif hint is str and "options" in facts:
        found |= {"enum": list(facts["options"])}
    return [found]


def _any_of(values: list[Json]) -> Json:
    different = [value for place, value in enumerate(values) if value not in values[:place]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _descriptions(settings: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(settings.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for field, text in itertools.pairwise(lines):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = inspect.cleandoc(said).replace("\n", " ")
    return found


def written() -> str:
    """Return the up-to-date content of the file."""
    return json.dumps(schema(), indent=None, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    PATH.write_text(written())
