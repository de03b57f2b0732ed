"""Choose the settings that become parameters of a run, and convert names and values to what MLflow accepts."""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.names import default_options, flatten
from pipeline.config.schemas import TopSettings, top_level_key
from pipeline.redaction import redact

LONGEST_NAME = 250
"""Maximum number of characters of the name of a metric or parameter: MLflow's limit."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")

CARD = "model_card.md"
INPUT_EXAMPLE = "input_example.json"
"""Files in the folder `export` of a run: the model card, and an example input under the key `inputs`."""

REQUEST_EXAMPLE = "request_example.json"
"""The same with dates as tables have them, if there are any. `serve` reads these; the model itself takes seconds."""

EXAMPLES = (REQUEST_EXAMPLE, "serving_input_example.json", INPUT_EXAMPLE)
"""Files with an example request to `/invocations`, the best first. MLflow writes the second one for a model."""


ALWAYS = ("seed", "optimizer.learning_rate", "train.batch_size", "train.epochs")
"""Settings that are parameters of every run, whatever their values."""

ALWAYS_CHOSEN = ("data", "model", "task", "augment", "strategy", "precision", "optimizer", "schedule")
"""Groups whose options are parameters of every run."""

MOST_SETTINGS = 40
"""Maximum number of settings that become parameters of a run. Its file `config.yaml` has all of them."""


def run_params(
    document: DictConfig, choices: Mapping[str, str | None], given: Collection[str], without_effect: Sequence[str]
) -> dict[str, Any]:
    """Return the options and settings of a run that users look for in a table of runs, by name.

    These are the usual ones, those that the user has given, and those that differ from their defaults.

    Args:
        document: The complete configuration.
        choices: The option of each group.
        given: The names of the settings and groups that the user has set.
        without_effect: Settings that do not change the result. They are omitted unless the user has given them.
    """
    defaults = default_options()
    chosen = {
        group: option
        for group, option in choices.items()
        if option is not None and (group in ALWAYS_CHOSEN or group in given or option != defaults.get(group))
    }
    shown: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    settings = [name for name in given if name not in choices and not _is_among(name, _ELSEWHERE)]
    for name, value, is_default in _leaves(document):
        if name in ALWAYS or _is_among(name, settings):
            shown[name] = value
        elif not is_default and not name.endswith("_target_") and not _is_among(name, (*without_effect, "pipeline")):
            rest[name] = value
    left = max(0, MOST_SETTINGS - len(shown))
    return {**chosen, **shown, **dict(list(rest.items())[:left])}


_ELSEWHERE = ("outputs", "tracking", "name")
"""Settings that MLflow shows in another form, or that are not of interest there."""


def _leaves(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield each setting under its dotted name, its value, and whether that is the default of its schema.

    A setting that refers to another one (`${seed}`) is omitted, because the other one has the value.
    """
    schema = OmegaConf.get_type(node) if prefix else TopSettings
    fields = {top_level_key(field.name): field for field in dataclasses.fields(schema)} if is_dataclass(schema) else {}
    written: Any = OmegaConf.to_container(node, resolve=False)
    for key in node:
        name = f"{prefix}{key!s}"
        if _is_pointer(written[key]):
            continue
        value = None if OmegaConf.is_missing(node, key) else node[key]
        if isinstance(value, DictConfig) and value:
            yield from _leaves(value, f"{name}.")
            continue
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        yield name, value, str(key) in fields and value == _default(fields[str(key)])


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; if it has none, the marker `MISSING`, which differs from every value."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_among(name: str, settings: Iterable[str]) -> bool:
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


def metric_name(name: str) -> str:
    """Return `name` as MLflow accepts it: other characters become `_`, and empty or relative parts are removed."""
    parts = _NOT_ALLOWED.sub("_", name)[:LONGEST_NAME].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"


def param_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as texts. MLflow truncates values of more than 6,000 characters."""
    return {metric_name(name): _text(value) for name, value in redact(dict(flatten(values))).items()}


def _text(value: Any) -> str:
    """Return a value as a text. Lists have no spaces, as on the command line: `[32,64]`."""
    return f"[{','.join(map(_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def model_name(experiment: str, run: str) -> str:
    """Return the name of a run's model in MLflow. Some characters of run names are not allowed in it."""
    return re.sub(r"[/:.%\"' ]", "_", f"{experiment} {run}")


def _is_pointer(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{(oc\.select:)?[\w.]+(,\w+)?\}", value) is not None


def shape_of(answers: Mapping[str, str] | None, classes: int) -> list[int]:
    """Return the shape of an example's predictions, the output with the most axes. answers: See `Exported`."""
    shapes = [json.loads(f"[{dtype.partition('[')[2]}") for dtype in (answers or {}).values() if "[" in dtype]
    return max(shapes, key=len, default=[classes])
