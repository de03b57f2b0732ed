"""An editor with the schema accepts the project's own files, and marks settings that the command would refuse."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from pipeline.paths import CONF
from tests import editor_schema

VALIDATOR = jsonschema.Draft7Validator(editor_schema.schema())


def test_the_file_is_up_to_date() -> None:
    """If this fails, run `make tables`."""
    assert editor_schema.PATH.read_text() == editor_schema.written()


@pytest.mark.parametrize(
    "path", [CONF / "config.yaml", *(CONF / "experiment").glob("*.yaml")], ids=lambda path: path.stem
)
def test_the_files_of_the_project_are_accepted(path: Any) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "group", [path.name for path in CONF.iterdir() if path.is_dir() and path.name in VALIDATOR.schema["properties"]]
)
def test_the_settings_of_each_option_are_accepted(group: str) -> None:
    for path in (CONF / group).glob("*.yaml"):
        values = yaml.safe_load(path.read_text()) or {}
        VALIDATOR.validate({group: {name: value for name, value in values.items() if name != "defaults"}})


@pytest.mark.parametrize(
    "wrong",
    ["seed: x", "train: {epochs: 0}", "train: {epoch: 3}", "tracking: {kind: remote}", "optimizer: {clip_norm: -1}"],
)
def test_settings_that_are_refused_are_marked(wrong: str) -> None:
    values = yaml.safe_load(wrong)
    assert list(VALIDATOR.iter_errors(values))


def test_interpolations_and_custom_targets_are_accepted() -> None:
    VALIDATOR.validate(yaml.safe_load("train: {epochs: '${oc.env:EPOCHS}'}\ndata: {_target_: my.load, own: 3}"))
