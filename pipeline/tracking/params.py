"""Parameters, and names, as MLflow can hold them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.names import flatten
from pipeline.redaction import redact

LONGEST_NAME = 250
"""Characters of the name of a metric or parameter, MLflow's own limit."""

MOST_ELEMENTS = 16
"""Elements of a list that get a parameter each; a longer one is a text."""

_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")

CARD = "model_card.md"
INPUT_EXAMPLE = "input_example.json"
"""Files of a run in its folder `export`: the card of its model, and an example of its input, as `inputs`."""

EXAMPLES = ("serving_input_example.json", INPUT_EXAMPLE)
"""Examples as the body of a request to `/invocations`: of a model in MLflow, which writes its own, and of a run."""


def configuration_params(document: DictConfig) -> dict[str, Any]:
    """Return every value of a configuration under its dotted name, once.

    A setting that only points at another one (`${seed}`, `${oc.select:seed,0}`) is left out: it stands under its own.
    """
    plain: Any = OmegaConf.to_container(document, resolve=False)
    whole: Any = OmegaConf.to_container(document, resolve=True)
    resolved = dict(flatten(whole))
    return {name: resolved[name] for name, value in flatten(plain) if not _is_pointer(value)}


def metric_name(name: str) -> str:
    """Return `name` as MLflow takes it: other characters become `_`, and empty and relative parts of a path go."""
    parts = _NOT_ALLOWED.sub("_", name)[:LONGEST_NAME].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"


def elements(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values, those of a list's elements in its place where there are few."""
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and 0 < len(value) <= MOST_ELEMENTS:
            yield from elements({f"{name}.{index}": part for index, part in enumerate(value)})
        elif isinstance(value, Mapping) and value:
            yield from elements(dict(flatten(value, f"{name}.")))
        else:
            yield name, value


def param_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as MLflow takes them; it cuts values of more than 6,000 characters.

    Each element of a list is a parameter, `filters.0`, which MLflow can sort and plot as a number.
    """
    return {metric_name(name): str(value) for name, value in redact(dict(elements(values))).items()}


def model_name(experiment: str, run: str) -> str:
    """Return the name of a run's model in MLflow, by experiment and setting: it allows fewer characters there."""
    return re.sub(r"[/:.%\"' ]", "_", f"{experiment} {run}")


def _is_pointer(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{(oc\.select:)?[\w.]+(,\w+)?\}", value) is not None
