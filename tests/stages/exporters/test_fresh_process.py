"""The process that reloads exported files: without the project, with an end, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.errors import UserError
from stages.exporters.fresh_process import FreshProcess
from tests.conftest import ROOT

LOADER = (
    "import time, os\ndef load(path):\n    {}\n    return lambda images: images.reshape(len(images), -1)[:, :2] / 255\n"
)


@pytest.fixture
def process() -> Iterator[FreshProcess]:
    process = FreshProcess("numpy")
    yield process
    process.close()


def order(folder: Path, line: str = "pass") -> dict[str, Any]:
    (folder / "loader.py").write_text(LOADER.format(line))
    np.save(folder / "images.npy", np.arange(48, dtype=np.uint8).reshape(4, 3, 4, 1))
    names = {name: str(folder / name) for name in ("loader.py", "images.npy", "answers.npy")}
    return {
        "loader": names["loader.py"], "path": str(folder / "file"), "images": names["images.npy"],
        "answers": names["answers.npy"], "batch": 3, "calls": 5,
    }  # fmt: skip


def test_it_answers_one_order_after_another_and_knows_nothing_of_the_project(
    process: FreshProcess, tmp_path: Path
) -> None:
    for line in ("pass", "print('a library speaks')"):
        answer = process.ask(order(tmp_path, line), 60)
        assert answer["milliseconds"] > 0
        assert not {"stages", "pipeline", "tests", "tensorflow"} & set(answer["modules"])
        expected = np.arange(48).reshape(4, 12)[:, :2] / 255
        np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, atol=1e-6)


def test_what_goes_wrong_in_it_is_one_line(process: FreshProcess, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"without this project \(ModuleNotFoundError: .*stages"):
        process.ask(order(tmp_path, "import stages"), 60)
    with pytest.raises(UserError, match="was not reloaded and compared within 1 seconds"):
        process.ask(order(tmp_path, "time.sleep(600)"), 1)


def test_its_death_is_one_line(process: FreshProcess, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"has died with exit code 7 .*Try: export\.reload=here"):
            process.ask(order(tmp_path, "os._exit(7)"), 60)


def test_it_ends_with_the_process_that_started_it() -> None:
    script = (
        "import sys, time; from stages.exporters.fresh_process import FreshProcess\n"
        "print(FreshProcess('numpy')._process.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    with suppress(ProcessLookupError):
        for _ in range(600):
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                return
            time.sleep(0.1)
        pytest.fail("it lives on")
