"""The process that reloads exported files: without the project, with an end, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.errors import UserError
from stages.exporters.fresh_process import (
    ForkedProcess,
    FreshProcess,
    Reloader,
    ahead,
    fresh_processes,
    servers,
    serving,
    started_ahead,
    use_servers,
)
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LOADER = (
    "import time, os\ndef load(path):\n    {}\n    return lambda images: images.reshape(len(images), -1)[:, :2] / 255\n"
)


@pytest.fixture(params=["its own", "forked", "ahead", "forked ahead"])
def process(request: pytest.FixtureRequest) -> Iterator[Reloader]:
    """A process that reloads with NumPy alone, in each way that it comes about."""
    with ExitStack() as started:
        for word, start in (("forked", serving), ("ahead", ahead)):
            if word in request.param:
                started.enter_context(start("numpy"))
        process = started.enter_context(fresh_processes({"numpy"}))["numpy"]
        assert isinstance(process, ForkedProcess if "forked" in request.param else FreshProcess)
        yield process


def order(folder: Path, line: str = "pass") -> dict[str, Any]:
    (folder / "loader.py").write_text(LOADER.format(line))
    np.save(folder / "images.npy", np.arange(48, dtype=np.uint8).reshape(4, 3, 4, 1))
    names = {name: str(folder / name) for name in ("loader.py", "images.npy", "answers.npy")}
    return {
        "loader": names["loader.py"], "path": str(folder / "file"), "images": names["images.npy"],
        "answers": names["answers.npy"], "batch": 3, "calls": 5,
    }  # fmt: skip


def test_it_answers_one_order_after_another_and_knows_nothing_of_the_project(process: Reloader, tmp_path: Path) -> None:
    for line in ("pass", "print('a library speaks')"):
        answer = process.ask(order(tmp_path, line), 60)
        assert answer["milliseconds"] > 0
        assert not {"stages", "pipeline", "tests", "tensorflow"} & set(answer["modules"])
        expected = np.arange(48).reshape(4, 12)[:, :2] / 255
        np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, atol=1e-6)


def test_what_goes_wrong_in_it_is_one_line(process: Reloader, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"without this project \(ModuleNotFoundError: .*stages"):
        process.ask(order(tmp_path, "import stages"), 60)
    with pytest.raises(UserError, match="was not reloaded and compared within 1 seconds"):
        process.ask(order(tmp_path, "time.sleep(600)"), 1)


@pytest.mark.smoke
def test_its_death_is_one_line(process: Reloader, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"has died with exit code 7 .*Try: export\.reload=here"):
            process.ask(order(tmp_path, "os._exit(7)"), 60)


@pytest.mark.parametrize("way", ["its own", "forked"])
def test_it_ends_with_the_process_that_started_it(way: str, tmp_path: Path) -> None:
    """Killed, that process closes nothing itself; another one, forked from it, still holds its pipes."""
    tell = tmp_path / "pid"
    asked = order(tmp_path, f"open({str(tell)!r}, 'w').write(str(os.getpid()))")
    script = (
        "import os, sys, time, json; from contextlib import nullcontext\n"
        "from stages.exporters.fresh_process import fresh_processes, serving\n"
        f"with {'serving' if way == 'forked' else 'nullcontext'}('numpy'), fresh_processes({{'numpy'}}) as processes:\n"
        f"    processes['numpy'].ask({asked!r}, 60)\n"
        "    other = os.fork() or time.sleep(600)\n"
        "    print(other, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    other = int(parent.stdout.readline())
    child = int(tell.read_text())
    family = [child, *([parent_of(child)] if way == "forked" else [])]
    try:
        for pid in family:
            os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        for pid in family:
            assert ends(pid), "it lives on"
    finally:
        os.kill(other, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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


def test_a_forked_process_ends_with_its_block_and_is_forgotten_by_the_other(tmp_path: Path) -> None:
    with serving("numpy"):
        with fresh_processes({"numpy"}) as first:
            pids = []
            for number in range(2):  # the second one holds nothing of the first
                with fresh_processes({"numpy"}) as processes:
                    asked = order(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))")
                    assert processes["numpy"].ask(asked, 60)["milliseconds"] > 0
                    pids.append(int((tmp_path / "pid").read_text()))
                assert ends(pids[number])
            assert first["numpy"].ask(order(tmp_path), 60)["milliseconds"] > 0
        assert len(set(pids)) == 2


def test_where_the_server_has_died_a_job_starts_a_process_of_its_own(tmp_path: Path) -> None:
    use_servers({"numpy": str(tmp_path / "nobody")})
    try:
        with fresh_processes({"numpy"}) as processes:
            assert isinstance(processes["numpy"], FreshProcess)
    finally:
        use_servers({})
    assert not servers()


def test_a_process_started_ahead_that_nobody_needs_ends() -> None:
    with ahead("numpy"):
        process = started_ahead["numpy"]
        assert isinstance(process, FreshProcess)
        pid = process.pid
    assert ends(pid)


def test_a_process_forked_ahead_that_has_died_is_replaced(tmp_path: Path) -> None:
    with serving("numpy"), ahead("numpy"), fresh_processes({"numpy"}) as first:
        assert first["numpy"].is_alive
        with suppress(UserError):
            first["numpy"].ask(order(tmp_path, "os._exit(7)"), 60)
        assert not first["numpy"].is_alive
        with fresh_processes({"numpy"}) as others:
            assert others["numpy"].ask(order(tmp_path), 60)["milliseconds"] > 0


def test_tensorflow_reloads_without_keras_and_a_loader_may_still_import_it(tmp_path: Path) -> None:
    lines = "import sys, tensorflow as tf; assert 'keras' not in sys.modules; tf.keras.layers"
    with fresh_processes({"tensorflow"}) as processes:
        assert "keras" in processes["tensorflow"].ask(order(tmp_path, lines), 120)["modules"]
