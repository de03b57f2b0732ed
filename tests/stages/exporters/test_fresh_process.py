"""The process that reloads exported files: without the project, with an end, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.errors import UserError
from stages.exporters.fresh_process import reload_files
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LOADER = (
    "import time, os\ndef load(path):\n    {}\n    return lambda images: images.reshape(len(images), -1)[:, :2] / 255\n"
)


def order(folder: Path, line: str = "pass", name: str = "file") -> dict[str, Any]:
    (folder / f"{name}.py").write_text(LOADER.format(line))
    np.savez(folder / "features.npz", np.arange(48, dtype=np.uint8).reshape(4, 3, 4, 1))
    features = {"path": str(folder / "features.npz"), "names": ["images"], "texts": {}}
    return {
        "loader": str(folder / f"{name}.py"), "path": str(folder / name), "features": features,
        "answers": str(folder / f"{name}.npz"), "batch": 3,
    }  # fmt: skip


def test_it_answers_every_order_without_keras_until_a_loader_imports_it(tmp_path: Path) -> None:
    of_keras = "import sys, tensorflow as tf; assert 'keras' not in sys.modules; tf.keras.layers"
    orders = [order(tmp_path, "print('a library speaks')", "first"), order(tmp_path, of_keras, "second")]
    reload_files(orders, 120)
    for given in orders:
        answers = np.load(given["answers"])
        assert answers["milliseconds"] > 0
        np.testing.assert_allclose(answers["rows"], np.arange(48).reshape(4, 12)[:, :2] / 255, atol=1e-6)


def test_what_goes_wrong_in_it_is_one_line(tmp_path: Path) -> None:
    orders = [order(tmp_path, name="first"), order(tmp_path, "import stages", "second")]
    with pytest.raises(UserError, match=r"second could not be reloaded without .*ModuleNotFoundError.*stages"):
        reload_files(orders, 120)
    with pytest.raises(UserError, match="file was not reloaded and compared within 1 seconds"):
        reload_files([order(tmp_path, "time.sleep(600)")], 1)


@pytest.mark.smoke
def test_its_death_is_one_line(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"ended with exit code 7 .*export\.reload=here"):
            reload_files([order(tmp_path, "os._exit(7)")], 60)


def test_it_ends_with_the_process_that_started_it() -> None:
    """Killed, that process closes nothing itself."""
    script = (
        "import time; from stages.exporters import fresh_process\nfresh_process.prestart()\n"
        "print(fresh_process._prestarted.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert ends(pid), "it lives on"


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
