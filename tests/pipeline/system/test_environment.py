"""What the environment lacks, and a command needs, is set."""

import os
from pathlib import Path

import pytest

from pipeline.system import environment
from stages.settings.places import resolved
from tests.pipeline.experiments import Patch

UNKNOWN = 2**31 - 7
"""A user id that has no entry in the list of users, as in a container."""


def test_a_user_without_a_home_has_one(monkeypatch: Patch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: UNKNOWN)
    with pytest.raises(RuntimeError, match="home directory"):  # as MLflow would, where it is imported
        Path.home()
    environment.prepare()
    assert Path.home() == resolved("~") == Path("/")


def test_a_home_stays_as_it_is(monkeypatch: Patch) -> None:
    monkeypatch.setenv("HOME", "/no/such/folder")
    environment.prepare()
    assert os.environ["HOME"] == "/no/such/folder"
    monkeypatch.delenv("HOME")
    environment.prepare()  # that of the list of users
    assert "HOME" not in os.environ
