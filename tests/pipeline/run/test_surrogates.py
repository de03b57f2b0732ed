"""Text that is no UTF-8, such as names of files, ends no run: it is printed and recorded as `\\udcff`.

Nor is a terminal told what to do by the texts of others: control characters are printed as escapes, too.
"""

import json
import os
from pathlib import Path

import pytest

from tests import commands
from tests.conftest import ROOT
from tests.pipeline.experiments import SMALL, TRAINED, only_run

pytestmark = pytest.mark.slow

OWN = """
import os
from stages.results import Record

def finish(trained, settings, folder):
    print("printed \\udcff")
    path = folder / "file\\udcff.txt"
    path.write_text("x")
    if settings["fails"]:
        raise RuntimeError(f"{path} cannot be used, \\ud83d \x1b[2J")
    return Record(params={"p\\udcff": "v\\udcff"}, files={"own": path})
"""


@pytest.mark.parametrize("fails", [False, True])
def test_text_that_is_not_utf8_ends_no_run(fails: bool, outputs: Path) -> None:
    (outputs / "own_surrogates.py").write_text(OWN)
    variables = {**os.environ, "PYTHONPATH": f"{outputs}:{ROOT}", "USER": "us\udcffer", "LOGNAME": "us\udcffer"}
    variables["SMTP_PASS"] = "pa\udcffss99"
    given = [*SMALL, *TRAINED, "train.epochs=1", "+pipeline.finish=done", f"outputs={outputs}"]
    given.append(f"+finish={{_target_: own_surrogates.finish, fails: {fails}}}")
    done = commands.run(*given, cwd=outputs, env=variables)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == int(fails), done.stdout + done.stderr
    assert "printed \\udcff" in done.stdout
    [folder] = outputs.glob("runs/*/*")
    summary = json.loads((folder / "summary.json").read_text())
    run = only_run(outputs)[1]
    assert summary["status"] == run.info.status == ("FAILED" if fails else "FINISHED")
    assert run.data.tags["mlflow.user"] == "us\\udcffer"
    if fails:
        assert "file\\udcff.txt cannot be used, \\ud83d \\x1b[2J" in summary["error"]
        assert "\x1b[2J" not in done.stdout + done.stderr
        assert "file\\udcff.txt cannot be used" in run.data.tags["error"]
    else:
        assert [value for name, value in run.data.params.items() if value == "v\\udcff"]
