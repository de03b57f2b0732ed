"""A stage declares what is special about it, and a wrong declaration is an error at once."""

import pytest

from stages.declared import Declared, accepted, declare, declared_by


def stage() -> None:
    """A stage without declarations."""


def test_a_stage_without_declarations_has_none() -> None:
    assert declared_by(stage) == Declared()
    assert declared_by(print) == Declared()


def test_declarations_are_kept_and_complete() -> None:
    def own() -> None:
        pass

    declare(own, save=lambda result, folder: None, restore=lambda saved: saved)
    assert declared_by(own).restore is not None
    with pytest.raises(ValueError, match="save and restore belong together"):
        declare(own, save=lambda result, folder: None)
    with pytest.raises(TypeError, match="sav"):
        declare(own, sav=print)


def test_a_function_gets_the_arguments_that_it_has_parameters_for() -> None:
    assert accepted(lambda model, settings: None, {"model": 1, "settings": 2, "folder": 3}) == {
        "model": 1,
        "settings": 2,
    }
