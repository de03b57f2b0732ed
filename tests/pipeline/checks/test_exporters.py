"""Formats of export whose packages or settings are missing are refused before anything starts."""

import pytest

from pipeline.checks.registry import check_rules
from stages.errors import UserError
from stages.settings.results import OnnxSettings
from tests.pipeline.experiments import experiment


def test_a_format_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxSettings, "requires", ("numpy", "no_such_package"))
    for option in ("onnx", "all"):
        with pytest.raises(UserError, match=r"no_such_package is not installed\..*Try: pip install no_such_package$"):
            check_rules(experiment(f"export={option}", "tracking=off"), surroundings=False)
    check_rules(experiment("export=litert", "tracking=off"), surroundings=False)


def test_formats_are_checked_when_they_are_composed() -> None:
    for given, said in {
        "+export.formats.mine=3": "names no exporter",
        "+export.formats.mine={a: 1}": "names no exporter",
        "export.reload=there": "export.reload=there is not known",
        "export.formats.litert_int8.weights=int4": "weights=int4 is not known",
        "export.formats.litert_int8.least_agreement=2": "is out of range",
    }.items():
        with pytest.raises(Exception, match=said):
            experiment("export=litert", given)
