"""A command sets the environment variables that it needs and that are missing."""

import os
from pathlib import Path

import pytest

from pipeline.system import environment
from stages.settings.places import resolved
from tests.pipeline.experiments import Patch

UNKNOWN = 2**31 - 7
"""A user id without an entry in the user database, as in a container."""


def test_a_user_without_a_home_gets_one(monkeypatch: Patch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: UNKNOWN)
    with pytest.raises(RuntimeError, match="home directory"):  # as when MLflow is imported
        Path.home()
    environment.prepare()
    assert Path.home() == resolved("~") == Path("/")


def test_an_existing_home_is_unchanged(monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", "/no/such/folder")
    environment.prepare()
    assert os.environ["HOME"] == "/no/such/folder"
    monkeypatch.delenv("HOME")
    environment.prepare()  # the home in the user database
    assert "HOME" not in os.environ
