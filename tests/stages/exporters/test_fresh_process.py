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
from stages.exporters.fresh_process import FreshProcess, end_prestarted, prestart, take
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LOADER = (
    "import time, os\ndef load(path):\n    {}\n    return lambda images: images.reshape(len(images), -1)[:, :2] / 255\n"
)


@pytest.fixture
def process() -> Iterator[FreshProcess]:
    started = FreshProcess()
    yield started
    started.close()


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
        assert not {"stages", "pipeline", "tests"} & set(answer["modules"])
        expected = np.arange(48).reshape(4, 12)[:, :2] / 255
        np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, atol=1e-6)


def test_what_goes_wrong_in_it_is_one_line(process: FreshProcess, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"without this project \(ModuleNotFoundError: .*stages"):
        process.ask(order(tmp_path, "import stages"), 60)
    with pytest.raises(UserError, match="was not reloaded and compared within 1 seconds"):
        process.ask(order(tmp_path, "time.sleep(600)"), 1)


@pytest.mark.smoke
def test_its_death_is_one_line(process: FreshProcess, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"has died with exit code 7 .*Try: export\.reload=here"):
            process.ask(order(tmp_path, "os._exit(7)"), 60)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed, that process closes nothing itself."""
    tell = tmp_path / "pid"
    asked = order(tmp_path, f"open({str(tell)!r}, 'w').write(str(os.getpid()))")
    script = (
        "import time; from stages.exporters.fresh_process import FreshProcess\n"
        f"FreshProcess().ask({asked!r}, 60)\n"
        "print('asked', flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    assert parent.stdout.readline()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert ends(int(tell.read_text())), "it lives on"


def ends(pid: int) -> bool:
    """Whether a process ends within 20 s, if only as one that nobody has waited for."""
    with suppress(ProcessLookupError, FileNotFoundError):
        for _ in range(200):
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            time.sleep(0.1)
        return False
    return True


def test_a_prestarted_process_is_taken_once_and_ends_where_nobody_needs_it() -> None:
    prestart()
    process = take()
    assert process is not None
    process.close()
    assert ends(process.pid)
    prestart()
    end_prestarted()
    another = take()
    assert another is not None
    assert another.pid != process.pid
    another.close()


def test_files_are_reloaded_without_keras_and_a_loader_may_still_import_it(
    process: FreshProcess, tmp_path: Path
) -> None:
    lines = "import sys, tensorflow as tf; assert 'keras' not in sys.modules; tf.keras.layers"
    assert "keras" in process.ask(order(tmp_path, lines), 120)["modules"]
