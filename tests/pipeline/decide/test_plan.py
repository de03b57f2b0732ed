"""The plan, which is read from source files and printed before any work."""

import pytest

from pipeline.decide.plan import make_plan
from stages.errors import UserError
from tests.pipeline.experiments import experiment


def without_settings(model: object, size: int = 1) -> None:
    """A stage with the result of an earlier stage as its only parameter."""


def test_settings_that_a_stage_never_receives_are_refused() -> None:
    """A stage receives its settings as `settings`; without this parameter they would be ignored."""
    own = f"+own={{_target_: {__name__}.without_settings, size: 3}}"
    with pytest.raises(UserError, match=r"own\.size has no effect: .* no parameter `settings`.*Try: ~own\.size"):
        make_plan(experiment("+pipeline.own=own", own))
    make_plan(experiment("+pipeline.own=own", f"+own={{_target_: {__name__}.without_settings}}"))
