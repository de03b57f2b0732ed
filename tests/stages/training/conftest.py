"""What the tests of trainings share."""

import pytest

from tests.stages.experiments import one_device
from tests.stages.training.stopped import Whole, run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The training on one device that others are compared with, or start from. Nothing may be written to its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return Whole(folder, *run(one_device(), folder))
