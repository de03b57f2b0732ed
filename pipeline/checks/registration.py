"""Registration of models that cannot work as configured."""

import re

from pipeline.checks.refusal import Refusal
from pipeline.config.experiment import Experiment
from stages.settings.results import EvaluateSettings, ExportSettings

_NAME = r"\w[\w .-]{0,199}"
_ALIAS = r"(?!latest$)(?!v\d+$)[\w-]{1,255}"
"""Of MLflow: `latest` and `v1` mean versions."""


def _setting(experiment: Experiment, name: str) -> str | None:
    settings = experiment.settings.get("export")
    return getattr(settings, name) if isinstance(settings, ExportSettings) else None


def _writes_saved_model(experiment: Experiment) -> bool:
    settings = experiment.settings.get("export")
    return isinstance(settings, ExportSettings) and (not settings.formats or "saved_model" in settings.formats)


def _is_compared(experiment: Experiment) -> bool:
    return _setting(experiment, "alias") is not None and _setting(experiment, "promote_if") != "always"


def _has_predictions(experiment: Experiment) -> bool:
    settings = experiment.settings.get("evaluate")
    return isinstance(settings, EvaluateSettings) and settings.predictions


REGISTRATION = (
    Refusal(
        lambda experiment: _setting(experiment, "register") is not None and experiment.tracking.kind == "off",
        "export.register={register} with tracking=off",
        "models are registered in MLflow",
        ("tracking=local", "tracking=server"),
        "tracking=local",
    ),
    Refusal(
        lambda experiment: _setting(experiment, "register") is not None and not _writes_saved_model(experiment),
        "export.register={register} without a SavedModel",
        "it is the format that becomes a model in MLflow",
        ("export=saved_model", "export=all"),
        "export=saved_model",
    ),
    Refusal(
        lambda experiment: re.fullmatch(_NAME, _setting(experiment, "register") or "x") is None,
        "export.register={register!r}",
        "MLflow takes no such name",
        "a name of letters, digits, spaces and _-., 200 at most",
        "export.register=my_model",
    ),
    Refusal(
        lambda experiment: _setting(experiment, "alias") is not None and _setting(experiment, "register") is None,
        "export.alias={alias} without export.register",
        "an alias is one of a registered model",
        "the name of a registered model",
        "export.register=my_model",
    ),
    Refusal(
        lambda experiment: re.fullmatch(_ALIAS, _setting(experiment, "alias") or "x") is None,
        "export.alias={alias!r}",
        "MLflow takes no such alias",
        "letters, digits and _-, neither latest nor v1, v2, …",
        "export.alias=champion",
    ),
    Refusal(
        lambda experiment: _is_compared(experiment) and not _has_predictions(experiment),
        "export.alias={alias} with export.promote_if={promote_if}, without predictions",
        "models are compared by the predictions that evaluate writes",
        "evaluate.predictions=true, or export.promote_if=always",
        "evaluate.predictions=true",
    ),
)
