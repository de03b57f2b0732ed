"""A user's Keras settings, in a file or a notebook, do not affect runs; a file that Keras cannot read is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.system.environment import check_keras_file
from stages.errors import UserError
from tests.pipeline.experiments import Patch, assert_refused


@pytest.mark.parametrize(("content", "message"), [
    ('{"floatx": "bfloat16"}', r"keras\.json: floatx is 'bfloat16'\. Expected float16, float32 or float64"),
    ('{"epsilon": 1}', "epsilon is 1"),
    ('{"image_data_format": "channels"}', "image_data_format is 'channels'"),
    ('["float16"]', "it contains a list"),
])  # fmt: skip
def test_a_file_that_keras_cannot_read_is_refused(
    content: str, message: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "keras.json").write_text(content)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert_refused(["model=mlp"], message)


@pytest.mark.parametrize("content", ["", "{", '{"floatx": "float16", "backend": "jax"}', None])
def test_a_file_that_keras_can_read_is_accepted(content: str | None, tmp_path: Path, monkeypatch: Patch) -> None:
    if content is not None:
        (tmp_path / "keras.json").write_text(content)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    check_keras_file()
    monkeypatch.delenv("KERAS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    check_keras_file()


def test_anything_but_a_file_is_refused_without_waiting(tmp_path: Path, monkeypatch: Patch) -> None:
    makers: list[Any] = [Path.mkdir, os.mkfifo]
    for number, make in enumerate(makers):
        home = tmp_path / str(number)
        home.mkdir()
        make(home / "keras.json")
        monkeypatch.setenv("KERAS_HOME", str(home))
        with pytest.raises(UserError, match=r"Keras cannot read .*keras\.json: "):
            check_keras_file()
