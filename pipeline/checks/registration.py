"""Registration of models that cannot work as configured."""

import re
from collections.abc import Callable

from pipeline.checks.refusal import Condition, Refusal, all_of, has
from stages.settings.results import EvaluateSettings, ExportSettings

_NAME = r"\w[\w .-]{0,199}"
_ALIAS = r"(?!latest$)(?!v\d+$)[\w-]{1,255}"
"""Of MLflow: `latest` and `v1` mean versions."""


def _export(applies: Callable[[ExportSettings], object]) -> Condition:
    return has("export", ExportSettings, applies)


_REGISTERS = _export(lambda export: export.register is not None)


_PREDICTS = has("evaluate", EvaluateSettings, lambda evaluate: evaluate.predictions)


def _is_compared(export: ExportSettings) -> bool:
    return export.alias is not None and export.promote_if != "always"


REGISTRATION = (
    Refusal(
        all_of(_REGISTERS, lambda experiment: experiment.tracking.kind == "off"),
        "export.register={register} with tracking=off",
        "models are registered in MLflow",
        ("tracking=local", "tracking=server"),
        "tracking=local",
    ),
    Refusal(
        all_of(_REGISTERS, _export(lambda export: export.formats and "saved_model" not in export.formats)),
        "export.register={register} without a SavedModel",
        "it is the format that becomes a model in MLflow",
        ("export=saved_model", "export=all"),
        "export=saved_model",
    ),
    Refusal(
        _export(lambda export: re.fullmatch(_NAME, export.register or "x") is None),
        "export.register={register!r}",
        "MLflow takes no such name",
        "a name of letters, digits, spaces and _-., 200 at most",
        "export.register=my_model",
    ),
    Refusal(
        _export(lambda export: export.alias is not None and export.register is None),
        "export.alias={alias} without export.register",
        "an alias is one of a registered model",
        "the name of a registered model",
        "export.register=my_model",
    ),
    Refusal(
        _export(lambda export: re.fullmatch(_ALIAS, export.alias or "x") is None),
        "export.alias={alias!r}",
        "MLflow takes no such alias",
        "letters, digits and _-, neither latest nor v1, v2, …",
        "export.alias=champion",
    ),
    Refusal(
        all_of(_export(_is_compared), lambda experiment: not _PREDICTS(experiment)),
        "export.alias={alias} with export.promote_if={promote_if}, without predictions",
        "models are compared by the predictions that evaluate writes",
        "evaluate.predictions=true, or export.promote_if=always",
        "evaluate.predictions=true",
    ),
)
