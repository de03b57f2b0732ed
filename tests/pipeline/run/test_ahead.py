"""Processes that reload exported models are started before they are needed, and only where they will be."""

import pytest

from pipeline.planning.earlier import prepare
from pipeline.run.ahead import reloading, reloading_for_jobs
from stages.exporters import fresh_process
from tests.pipeline.experiments import experiment

PROCESS = "export.reload=process"  # which the variable of these tests forbids


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((PROCESS,), {"tensorflow"}),
        (("export=all", PROCESS), {"tensorflow"}),
        (("export=keras", PROCESS), set()),
        (("export.reload=here",), set()),
        (("~pipeline.export", "~export"), set()),
    ],
)
def test_a_run_starts_the_process_that_its_export_will_need(overrides: tuple[str, ...], expected: set[str]) -> None:
    own = experiment(*overrides)
    with reloading(prepare(own), own):
        assert set(fresh_process.started_ahead) == expected
    assert not fresh_process.started_ahead
    with reloading_for_jobs([own]):
        assert set(fresh_process.servers()) == expected
        with reloading(prepare(own), own):
            assert all(isinstance(one, fresh_process.ForkedProcess) for one in fresh_process.started_ahead.values())
            assert set(fresh_process.started_ahead) == expected
    assert not fresh_process.servers()
