"""Paths to files that are not regular are not read: reading a FIFO would wait forever, and a device has no end."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.serving import files
from stages.checkpoints.files import Checkpoint, newest, write
from stages.checkpoints.names import can_start, checkpoint_files
from stages.errors import UserError
from stages.features.drift import Drift
from stages.load.folders import image_folder, read_text
from stages.settings.arrays import ArraysSettings
from stages.settings.places import content_digest, is_file_or_folder, regular_file
from tests.stages.images import folder_of, settings


def bound_socket(path: Path) -> None:
    where = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path.name)
    os.chdir(where)


@pytest.fixture(autouse=True)
def ten_seconds() -> Iterator[None]:
    """Fail a test that takes too long because it reads an endless file."""

    def hangs(*_: object) -> None:
        raise AssertionError("it is read")

    former = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("make", [os.mkfifo, bound_socket, lambda path: path.symlink_to("/dev/zero")])
def test_only_files_are_regular(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x")
    for path in (tmp_path / "x", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            regular_file(path)
    assert not is_file_or_folder(str(tmp_path / "x"))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert regular_file(tmp_path / "link") == tmp_path / "link"


def test_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000009.npz", "start.npz"):
        os.mkfifo(tmp_path / name)
    assert not can_start(tmp_path)
    write(Checkpoint({"step": 123_456_789}), tmp_path / "step-123456789.npz")
    found = newest(tmp_path, pytest.fail)
    assert (found and found.step) == 123_456_789


def test_images_texts_and_arrays(tmp_path: Path) -> None:
    folder_of(tmp_path / "images")
    fifo = tmp_path / "images" / "class 0" / "x.png"
    os.mkfifo(fifo)
    assert sum(map(len, image_folder(settings(tmp_path / "images")).splits.values())) == 24
    assert list(files._predictions(None, [fifo], Drift("{}"))) == [(fifo, "not a regular file")]
    with pytest.raises(UserError, match="not a regular file"):
        read_text(fifo, "utf8")
    with pytest.raises(UserError, match="not a regular file"):
        ArraysSettings(files=str(fifo)).check("data")


@pytest.mark.parametrize(
    "name", ["step-abc.npz", "step-.npz", "step-٣.npz", "step-7.npz\n", "STEP-7.npz", "step-3-2.npz"]
)
def test_files_with_a_name_similar_to_a_checkpoint_are_ignored(name: str, tmp_path: Path) -> None:
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    (tmp_path / name).write_bytes(b"?")
    (tmp_path / "step-00000009.npz").symlink_to("nothing")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["step-00000003.npz"]


def test_the_digest_of_a_folder_depends_on_its_content(tmp_path: Path) -> None:
    """This also holds in a process that has computed it before, such as a notebook."""
    for name in ("one", "other"):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "a").write_text("a")
    first = content_digest(str(tmp_path / "one"))
    assert first == content_digest(str(tmp_path / "other"))
    (tmp_path / "one" / "inside" / "a").write_text("ab")
    changed = content_digest(str(tmp_path / "one"))
    (tmp_path / "other" / "inside" / "a").rename(tmp_path / "other" / "b")
    assert len({first, changed, content_digest(str(tmp_path / "other"))}) == 3
