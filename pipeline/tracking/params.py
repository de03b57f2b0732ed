"""Parameters of a run: which settings they are, and names and values as MLflow can hold them."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.names import default_options, flatten
from pipeline.config.schemas import TopSettings, top_level_key
from pipeline.redaction import redact

LONGEST_NAME = 250
"""Characters of the name of a metric or parameter, MLflow's own limit."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")

CARD = "model_card.md"
INPUT_EXAMPLE = "input_example.json"
"""Files of a run in its folder `export`: the card of its model, and an example of its input, as `inputs`."""

EXAMPLES = ("serving_input_example.json", INPUT_EXAMPLE)
"""Examples as the body of a request to `/invocations`: of a model in MLflow, which writes its own, and of a run."""


ALWAYS = ("seed", "optimizer.learning_rate", "train.batch_size", "train.epochs")
"""Settings that are parameters of every run, whatever their values."""

ALWAYS_CHOSEN = ("data", "model", "task", "augment", "strategy", "precision", "optimizer", "schedule")
"""Groups whose options are parameters of every run."""

MOST_SETTINGS = 40
"""Settings of a run that are parameters; `config.yaml`, a file of the run, has all."""


def run_params(
    document: DictConfig, choices: Mapping[str, str | None], given: Collection[str], without_effect: Sequence[str]
) -> dict[str, Any]:
    """Return the settings of a run that people look for in a table of runs, and its options, under their names.

    These are the usual ones, those that the user has given, and those that differ from their defaults.

    Args:
        choices: the option of each group.
        given: names of the settings and groups that the user has set.
        without_effect: settings that do not change the result; they are left out unless the user has given them.
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
"""Settings that MLflow shows in another form, or that are of no interest there."""


def _leaves(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield each setting under its dotted name, its value, and whether that is the default of its schema.

    A setting that refers to another one (`${seed}`) is left out: that one has the value.
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
    """Return the default of a field; of one without, what no value equals."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_among(name: str, settings: Iterable[str]) -> bool:
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it: other characters become `_`, and empty and relative parts of a path go."""
    parts = _NOT_ALLOWED.sub("_", name)[:LONGEST_NAME].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"


def param_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as MLflow takes them; it cuts values of more than 6,000 characters."""
    return {metric_name(name): _text(value) for name, value in redact(dict(flatten(values))).items()}


def _text(value: Any) -> str:
    """Return a value as a text; a list without spaces, as the command line takes it: `[32,64]`."""
    return f"[{','.join(map(_text, value))}]" if isinstance(value, (list, tuple)) else str(value)


def model_name(experiment: str, run: str) -> str:
    """Return the name of a run's model in MLflow, by experiment and setting: it allows fewer characters there."""
    return re.sub(r"[/:.%\"' ]", "_", f"{experiment} {run}")


def _is_pointer(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{(oc\.select:)?[\w.]+(,\w+)?\}", value) is not None
