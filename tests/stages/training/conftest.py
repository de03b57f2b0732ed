"""What the tests of trainings share."""

import pytest

from tests.stages.experiments import one_device
from tests.stages.training.stopped import Whole, run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The training on one device that others are compared with, or start from. Nothing may be written to its folder."""
    folder = tmp_path_factory.mktemp("whole")
    trained, told = run(one_device(), folder)
    assert trained is not None
    return Whole(folder, trained, told)
