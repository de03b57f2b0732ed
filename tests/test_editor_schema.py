"""An editor that knows the schema takes the project's own files, and marks what the command would refuse."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from pipeline.paths import CONF
from tests import editor_schema

VALIDATOR = jsonschema.Draft7Validator(editor_schema.schema())


def test_the_file_is_up_to_date() -> None:
    """Else: make tables."""
    assert editor_schema.PATH.read_text() == editor_schema.written()


@pytest.mark.parametrize(
    "path", [CONF / "config.yaml", *(CONF / "experiment").glob("*.yaml")], ids=lambda path: path.stem
)
def test_the_files_of_the_project_are_right(path: Any) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "group", [path.name for path in CONF.iterdir() if path.is_dir() and path.name in VALIDATOR.schema["properties"]]
)
def test_so_is_what_an_option_sets(group: str) -> None:
    for path in (CONF / group).glob("*.yaml"):
        values = yaml.safe_load(path.read_text()) or {}
        VALIDATOR.validate({group: {name: value for name, value in values.items() if name != "defaults"}})


@pytest.mark.parametrize(
    "wrong",
    ["seed: x", "train: {epochs: 0}", "train: {epoch: 3}", "tracking: {kind: remote}", "optimizer: {clip_norm: -1}"],
)
def test_what_is_refused_is_marked(wrong: str) -> None:
    values = yaml.safe_load(wrong)
    assert list(VALIDATOR.iter_errors(values))


def test_interpolations_and_own_targets_are_right() -> None:
    VALIDATOR.validate(yaml.safe_load("train: {epochs: '${oc.env:EPOCHS}'}\ndata: {_target_: my.load, own: 3}"))
