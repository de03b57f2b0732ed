"""Folders that `outputs` names, alike in every command: no address, no impossible path; empty is the default."""

import pytest

from pipeline import runs
from pipeline.api import open_run
from pipeline.command_line.command import command_parser
from stages.errors import UserError
from tests.pipeline.experiments import experiment

IMPOSSIBLE = {
    "s3://bucket/runs": "is an address, but runs are files", "file:///tmp/x": "is an address, but runs are files",
    "~nobody_at_all/x": "can be no directory", "x" * 5000: "can be no directory",
}  # fmt: skip


@pytest.mark.parametrize("place", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_what_is_no_folder_is_refused_in_one_line_by_every_command(place: str) -> None:
    for command in (
        lambda: experiment(f"outputs='{place}'"),
        lambda: runs.main([f"outputs={place}"]),
        lambda: open_run("4d9eb298", place),
    ):
        with pytest.raises(UserError, match=rf"^[^\n]*{IMPOSSIBLE[place]}[^\n]*Try: outputs=./outputs"):
            command()


def test_an_empty_text_is_the_default_in_every_command() -> None:
    default = experiment().outputs
    assert experiment("outputs=''").outputs == default
    for words in ([], ["outputs="], ["--outputs", ""]):
        assert command_parser("runs", "").parse_args(words).outputs == default
