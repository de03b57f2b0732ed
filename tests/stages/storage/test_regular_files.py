"""What is no regular file is refused wherever a path is read: a FIFO would wait for ever, a device never ends."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline import predict
from pipeline.run_folder.runs import read_run
from stages.checkpoints.files import Checkpoint, newest, read, write
from stages.checkpoints.forks import start_from
from stages.checkpoints.names import can_start, checkpoint_files
from stages.errors import UserError
from stages.evaluation.predictions import check_other
from stages.features.drift import Drift
from stages.load.folders import image_folder
from stages.settings.places import content_digest, is_file_or_folder, regular_file
from tests.stages.experiments import one_device
from tests.stages.images import folder_of, settings
from tests.stages.transfer.small import build


def bound_socket(path: Path) -> None:
    where = Path.cwd()
    os.chdir(path.parent)  # a socket's name has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path.name)
    os.chdir(where)


@pytest.fixture(autouse=True)
def ten_seconds() -> Iterator[None]:
    """Has a test that reads what never ends fail."""

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


def test_checkpoints_and_weights(tmp_path: Path) -> None:
    for name in ("step-00000009.npz", "start.npz", "some.weights.h5"):
        os.mkfifo(tmp_path / name)
    assert not can_start(tmp_path)
    with pytest.raises(UserError, match="has no whole checkpoint"):
        start_from(tmp_path, tmp_path / "fork")
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    found = newest(tmp_path, pytest.fail)
    assert (found and found.step) == 3
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "step-00000009.npz")
    with pytest.raises(UserError, match="not a regular file"):
        build(one_device(), weights=tmp_path / "some.weights.h5")


def test_images_and_files_of_runs(tmp_path: Path) -> None:
    folder_of(tmp_path / "images")
    os.mkfifo(tmp_path / "images" / "class 0" / "x.png")
    splits = image_folder(settings(tmp_path / "images", on_error="skip")).splits
    assert sum(map(len, splits.values())) == 24
    files = list(predict._files([tmp_path / "images" / "class 0"], (".png",)))
    answers = [(file.name, answer) for file, answer in predict._answers(None, files[-1:], Drift("{}"))]
    assert ("x.png", "not a regular file") in answers
    for name in ("summary.json", "config.yaml", "predictions.parquet"):
        os.mkfifo(tmp_path / name)
    assert read_run(tmp_path) is None
    with pytest.raises(UserError, match="damaged"):
        check_other(tmp_path, "x")


@pytest.mark.parametrize("name", ["step-abc.npz", "step-.npz", "step-٣.npz", "step-7.npz\n", "STEP-7.npz"])
def test_names_that_only_look_like_a_checkpoints(name: str, tmp_path: Path) -> None:
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    (tmp_path / name).write_bytes(b"?")
    (tmp_path / "step-00000008.npz").mkdir()
    (tmp_path / "step-00000009.npz").symlink_to("nothing")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["step-00000003.npz"]


def test_the_digest_of_a_folder_is_of_its_content(tmp_path: Path) -> None:
    """Also in a process that has computed it before, such as a notebook's."""
    for name in ("one", "other"):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "a").write_text("a")
    first = content_digest(str(tmp_path / "one"))
    assert first == content_digest(str(tmp_path / "other"))
    (tmp_path / "one" / "inside" / "a").write_text("ab")
    changed = content_digest(str(tmp_path / "one"))
    (tmp_path / "other" / "inside" / "a").rename(tmp_path / "other" / "b")
    assert len({first, changed, content_digest(str(tmp_path / "other"))}) == 3
