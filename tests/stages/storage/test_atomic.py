"""A file or a folder has its old or its new content, whenever the writer is killed, and if the disk is full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

WRITE = """
import os, resource, sys
from pathlib import Path
from stages.storage.atomic import atomic_write

NEW = b"n" * 300_000
path, kind = Path(sys.argv[1]), sys.argv[2]

def make_folder(path):
    path.mkdir()
    (path / "inner").write_bytes(NEW)

contents = {"text": NEW.decode(), "function": lambda path: path.write_bytes(NEW), "folder": make_folder}
old = None if kind == "folder" else b"old"

def begin():
    if old is not None:
        path.write_bytes(old)

def found():
    file = path / "inner" if path.is_dir() else path
    return file.read_bytes() if file.exists() else None
"""

KILLED = """
def exit_after(calls):
    def count(frame, event, function):
        nonlocal calls
        calls -= event.startswith("c_")  # before and after each built-in function, so each system call
        if not calls:
            os._exit(9)
    sys.setprofile(count)
    atomic_write(path, contents[kind])
    sys.setprofile(None)
    os._exit(0)

calls, status, left = 0, 9, []
while status:
    begin()
    calls += 1
    child = os.fork()
    if not child:
        exit_after(calls)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left.append(found())
    assert left[-1] in (old, NEW)
    if kind == "folder" and left[-1]:
        break
assert left[0] == old and left[-1] == NEW and len(left) > 20, len(left)
assert [file.name for file in path.parent.iterdir()] == [path.name]
"""

FULL = """
begin()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # some bytes, then an error, as from a full disk
try:
    atomic_write(path, contents[kind])
except OSError:
    assert found() == old
    assert [file.name for file in path.parent.iterdir()] == [path.name] * (old is not None)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("kind", ["text", "function", "folder"])
@pytest.mark.parametrize("script", [pytest.param(KILLED, marks=pytest.mark.slow), FULL], ids=["killed", "full disk"])
def test_the_old_or_the_new_content_is_there(script: str, kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE + script, str(tmp_path / "file"), kind]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
