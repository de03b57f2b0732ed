"""What is no regular file is refused wherever a path is read: a FIFO would wait for ever, a device never ends."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import predict
from pipeline.planning.inherited import known_targets
from pipeline.provenance.source_digest import _contents
from pipeline.run_folder.runs import read_run
from pipeline.run_folder.summary import Summary
from pipeline.serving.models import load
from pipeline.sweep.index import sweep_status
from stages.checkpoints.files import Checkpoint, newest, read, write
from stages.checkpoints.forks import start_from
from stages.checkpoints.names import can_start, checkpoint_files
from stages.checkpoints.saved import digests_of_run
from stages.errors import UserError
from stages.evaluation.predictions import check_other
from stages.features.drift import Drift
from stages.load.image_folder import image_folder
from stages.load.tfds import tfds
from stages.settings.data import ImageFolderSettings, TfdsSettings
from stages.settings.model import ModelSettings
from stages.settings.places import content_digest, is_file_or_folder, regular_file
from tests.stages.experiments import one_device
from tests.stages.transfer.small import build


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    where = Path.cwd()
    os.chdir(path.parent)  # a socket's name has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path.name)
    os.chdir(where)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[fifo, bound_socket, device], ids=lambda make: make.__name__)
def irregular(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], None]]:
    """Makes a path that is no regular file; a test that reads it fails within ten seconds."""

    def hangs(*_: Any) -> None:
        raise AssertionError("it is read")

    former = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(10)
    yield request.param
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


def test_only_files_are_regular(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    irregular(tmp_path / "x")
    for path in (tmp_path / "x", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            regular_file(path)
    assert not is_file_or_folder(str(tmp_path / "x"))
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert regular_file(tmp_path / "link") == tmp_path / "link"


def test_checkpoints(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("step-00000009.npz", "start.npz"):
        irregular(tmp_path / name)
    assert not can_start(tmp_path)
    assert newest(tmp_path, pytest.fail) is None
    with pytest.raises(UserError, match="has no whole checkpoint"):
        start_from(tmp_path, tmp_path / "fork")
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    found = newest(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 3
    with pytest.raises(OSError, match="not a regular file"):
        read(tmp_path / "step-00000009.npz")


def test_weights(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "some.weights.h5"
    irregular(path)
    with pytest.raises(UserError, match="is no file"):
        ModelSettings(weights=str(path), network={"_target_": "x.y"}).check("model")
    with pytest.raises(UserError, match="not a regular file"):  # as a stage called in a notebook has it
        build(one_device(), weights=path)
    exported = tmp_path / "saved_model"
    (exported / "variables").mkdir(parents=True)
    (exported / "saved_model.pb").touch()
    irregular(exported / "variables" / "variables.index")
    with pytest.raises(UserError, match="not a regular file"):
        build(one_device(), weights=exported)
    with pytest.raises(OSError, match="not a regular file"):  # as `pipeline.predict` does
        load(exported)
    (tmp_path / "results" / "train").mkdir(parents=True)
    irregular(tmp_path / "results" / "train" / "trained.npz")
    assert digests_of_run(tmp_path / "export" / "x.keras") is None


def test_images_of_a_folder_are_not_read(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    from PIL import Image

    for index in range(20):
        place = tmp_path / ("a", "b")[index % 2]
        place.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), index, np.uint8)).save(place / f"{index}.png")
    irregular(tmp_path / "a" / "x.png")
    settings = ImageFolderSettings(dir=str(tmp_path), size=[8, 8], on_error="skip")
    assert sum(len(split) for split in image_folder(settings).splits.values()) == 20


def test_images_to_predict(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    irregular(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"x.png is not a regular file"):
        list(predict._files([tmp_path / "x.png"]))
    files = list(predict._files([tmp_path]))
    answers = predict._answers(None, files, Drift("{}"))
    assert [(file.name, answer) for file, answer in answers] == [("x.png", "not a regular file")]


def test_a_set_of_tfds(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "made" / "1.0.0"
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")
    irregular(place / "label.labels.txt")
    with pytest.raises(UserError, match=r"not a regular file.*label.labels.txt"):
        tfds(TfdsSettings(name="made", dir=str(tmp_path)))


def test_files_of_runs_and_of_configuration(irregular: Callable[[Path], None], tmp_path: Path) -> None:
    for name in ("summary.json", "config.yaml", "predictions.parquet", "model.yaml"):
        irregular(tmp_path / name)
    assert read_run(tmp_path) is None
    with pytest.raises(OSError, match="not a regular file"):
        Summary.read(tmp_path)
    with pytest.raises(UserError, match="damaged"):
        check_other(tmp_path, "x")
    assert known_targets([tmp_path]) == known_targets([])
    irregular(tmp_path / "sweep.json")
    assert sweep_status(tmp_path) is None
    [(_, digest)] = _contents(tmp_path / "model.yaml", set(), "")
    assert digest == "unreadable (not a regular file)"


@pytest.mark.parametrize(
    "name",
    [f"step-{text}.npz" for text in ("abc", "", "1.2", "٣", "-1", "²3", "1e3", " 7", "7.npz", "0x7", "\udcff")]
    + ["step-7.npz\n", "STEP-7.npz"],
)
def test_names_that_only_look_like_a_checkpoints(name: str, tmp_path: Path) -> None:
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    (tmp_path / name).write_bytes(b"?")
    (tmp_path / "step-00000008.npz").mkdir()
    (tmp_path / "step-00000009.npz").symlink_to("nothing")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["step-00000003.npz"]
    found = newest(tmp_path, pytest.fail)
    assert found is not None
    assert found.step == 3
    assert (tmp_path / name).exists()


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
