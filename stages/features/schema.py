"""The kinds of features that there are, and features as JSON. To add a kind, add its class to `KINDS`."""

from collections.abc import Mapping
from typing import Any

from stages.features.categories import CategoryFeature
from stages.features.dates import DateFeature
from stages.features.images import ImageFeature
from stages.features.kinds import Feature, Schema
from stages.features.numbers import NumberFeature
from stages.features.texts import TextFeature
from stages.features.vectors import VectorFeature
from stages.features.windows import CalendarFeature, WindowFeature

KINDS: Mapping[str, type[Feature]] = {
    feature.kind: feature
    for feature in (
        *(ImageFeature, NumberFeature, DateFeature, CategoryFeature, TextFeature, VectorFeature),
        *(WindowFeature, CalendarFeature),
    )
}
"""The classes of features by their kinds."""


def to_json(schema: Schema) -> dict[str, Any]:
    """Return a schema as JSON."""
    return {name: feature.to_json() for name, feature in schema.items()}


def of_json(values: Mapping[str, Any]) -> dict[str, Feature]:
    """Return the schema that `to_json` has written, in this or an earlier version."""
    return {name: feature_of(feature) for name, feature in values.items()}


def feature_of(values: Mapping[str, Any]) -> Feature:
    """Return a feature from JSON. Earlier versions wrote what they knew of its values under `facts`."""
    values = {**values, **values.get("facts", {})}
    kind = KINDS[values["kind"]]
    bins = values.get("trained_on")
    trained_on = None if bins is None else kind.bins(**{key: bins[key] for key in kind.bins.__dataclass_fields__})
    return kind.of_json(values, column=values.get("column"), trained_on=trained_on)
