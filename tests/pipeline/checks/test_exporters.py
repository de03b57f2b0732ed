"""Export formats and networks with missing packages or settings are refused before anything starts."""

from pathlib import Path

import pytest

from pipeline.checks.registry import check_rules
from stages.errors import UserError
from stages.settings.model import KerasHubSettings
from stages.settings.results import OnnxSettings
from tests.pipeline.experiments import experiment


def test_a_format_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxSettings, "requires", ("numpy", "no_such_package"))
    for option in ("onnx", "all"):
        with pytest.raises(UserError, match=r"no_such_package is not installed\..*Try: pip install no_such_package$"):
            check_rules(experiment(f"export={option}", "tracking=off"), surroundings=False)
    mapping = "+export.formats.b={_target_: stages.exporters.onnx_file.OnnxFile, opset: 18}"
    with pytest.raises(UserError, match="no_such_package is not installed"):
        check_rules(experiment(mapping, "tracking=off"), surroundings=False)
    check_rules(experiment("export=litert", "tracking=off"), surroundings=False)


def test_a_backbone_of_keras_hub_needs_its_extra_and_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("model=keras_hub", f"model.network.preset={tmp_path}", "tracking=off")
    with pytest.raises(UserError, match="is not a KerasHub preset"):
        experiment(*given)
    (tmp_path / "model.weights.h5").touch()
    with pytest.raises(UserError, match="is not a KerasHub preset"):
        experiment(*given)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(KerasHubSettings, "requires", ("no_such_package",))
    with pytest.raises(UserError, match=r"model=keras_hub: the package no_such_package is not installed.*extra 'hub'"):
        check_rules(experiment(*given), surroundings=False)
    monkeypatch.setattr(KerasHubSettings, "requires", ("numpy",))
    check_rules(experiment(*given), surroundings=False)
