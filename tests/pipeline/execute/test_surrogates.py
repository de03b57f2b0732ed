"""Text that is not UTF-8, such as names of files, does not end a run: it is printed and recorded as `\\udcff`.

Control characters in texts are printed as escapes, too, so they cannot control the terminal.
"""

import json
import os
from pathlib import Path

import pytest

from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import SMALL, TRAINED, only_folder, only_run

OWN = """
from stages.results import Record

def finish(trained, settings, folder):
    print("printed \\udcff")
    path = folder / "file\\udcff.txt"
    path.write_text("x")
    return Record(params={"p\\udcff": "v\\udcff"}, files={"own": path})

def fail(done, settings, folder):
    raise RuntimeError(f"{folder}/file\\udcff.txt cannot be used, \\ud83d \x1b[2J")
"""


@pytest.mark.slow
def test_text_that_is_not_utf8_is_recorded_without_an_error(outputs: Path) -> None:
    (outputs / "own_surrogates.py").write_text(OWN)
    variables = {**os.environ, "PYTHONPATH": f"{outputs}:{ROOT}", "USER": "us\udcffer", "LOGNAME": "us\udcffer"}
    variables["SMTP_PASS"] = "pa\udcffss99"
    given = [*SMALL, *TRAINED, "train.epochs=1", "+pipeline.finish=done", "+pipeline.fail=never"]
    given += [f"+{stage}={{_target_: own_surrogates.{stage}}}" for stage in ("finish", "fail")]
    done = commands.run(*given, f"outputs={outputs}", cwd=outputs, env=variables)
    printed = done.stdout + done.stderr
    assert done.returncode == 1, printed
    said = ("printed \\udcff", "Traceback", "\x1b[2J")
    assert [text in printed for text in said] == [True, False, False]
    summary, run = json.loads((only_folder(outputs) / "summary.json").read_text()), only_run(outputs)[1]
    assert summary["stages"]["finish"]["status"] == "ran"
    assert "file\\udcff.txt cannot be used, \\ud83d \\x1b[2J" in summary["error"]
    assert "file\\udcff.txt cannot be used" in run.data.tags["error"]
    assert run.data.tags["mlflow.user"] == "us\\udcffer"
    assert "v\\udcff" in run.data.params.values()
