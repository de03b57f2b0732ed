"""Folders that `outputs` names, alike in every command: no address, no impossible path; empty is the default."""

import pytest

from pipeline import runs
from pipeline.api import open_run
from pipeline.command_line.command import command_parser
from stages.errors import UserError
from tests.pipeline.experiments import experiment

ADDRESSES = ["s3://bucket/runs", "gs://bucket", "S3://bucket", "hdfs://host/runs", "file:///tmp/x"]
IMPOSSIBLE = ["~nobody_at_all/x", "x" * 5000]


@pytest.mark.parametrize("place", [*ADDRESSES, *IMPOSSIBLE])
def test_what_is_no_folder_is_refused_in_one_line_by_every_command(place: str) -> None:
    problem = f"outputs={place} is an address, but runs are files" if place in ADDRESSES else " can be no directory"
    for command in (
        lambda: experiment(f"outputs='{place}'"),
        lambda: runs.main([f"outputs={place}"]),
        lambda: open_run("4d9eb298", place),
    ):
        with pytest.raises(UserError) as refused:
            command()
        assert problem in str(refused.value)
        assert "Try: outputs=./outputs" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_an_empty_text_is_the_default_in_every_command() -> None:
    default = experiment().outputs
    assert experiment("outputs=''").outputs == default
    for words in ([], ["outputs="], ["--outputs", ""]):
        assert command_parser("runs", "").parse_args(words).outputs == default
