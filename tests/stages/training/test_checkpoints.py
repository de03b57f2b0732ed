"""Checkpoints: written when they are due, read whole or not at all, and only by the training that they are of."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.checkpoints.attributes import restore_attributes, state_of
from stages.checkpoints.files import Checkpoint, from_bytes, newest, read, to_bytes, write
from stages.checkpoints.names import checkpoint_files
from stages.checkpoints.progress import Progress
from stages.errors import UserError
from tests.stages.experiments import adam, flat, one_device, real_digits
from tests.stages.training.stopped import Whole, run, stop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of which 15 steps are over, in calls of 4, with checkpoints at 10 and 15."""
    folder = tmp_path_factory.mktemp("stopped")
    stop(one_device(), folder, 15, checkpoint_every_steps=5, checkpoints_kept=2, steps_per_call=4)
    return folder


def test_checkpoints_are_written_when_they_are_due_and_the_last_ones_kept(stopped: Path) -> None:
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == [
        "step-00000010.npz", "step-00000015.npz",
    ]  # fmt: skip
    assert read(stopped / "checkpoints" / "step-00000010.npz").step == 10


@pytest.mark.parametrize("damage", ["cut", "empty", "a bit", "another file"])
def test_a_damaged_checkpoint_is_passed_over(damage: str, stopped: Path, whole: Whole, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    last = folder / "step-00000015.npz"
    content = bytearray(last.read_bytes())
    if damage == "a bit":
        content[len(content) // 2] ^= 1
    last.write_bytes(
        {"cut": content[:-100], "empty": bytearray(), "another file": bytearray(b"PK not so")}.get(damage, content)
    )
    (folder / ".partial-step-00000016.npz").write_bytes(content)
    if damage == "a bit":
        resumed, told = run(one_device(), tmp_path)
        warned = told.warnings
        assert told.resumed_from == 10
        np.testing.assert_array_equal(flat(whole.trained.model.network), flat(resumed.model.network))
        assert not list(folder.glob(".partial-*"))
    else:  # as a training begins
        warned = []
        found = newest(folder, warned.append)
        assert (found and found.step) == 10
    assert warned[0].startswith("skipped the checkpoint step-00000015.npz: ")


def test_a_damaged_checkpoint_costs_no_later_one(tmp_path: Path) -> None:
    stop(one_device(), tmp_path, 12, checkpoints_kept=1)
    [last] = (tmp_path / "checkpoints").glob("step-*.npz")
    last.write_bytes(last.read_bytes()[:-100])
    assert stop(one_device(), tmp_path, 5, checkpoints_kept=1).resumed_from is None
    assert stop(one_device(), tmp_path, 9, checkpoints_kept=1).resumed_from == 7


@pytest.mark.smoke
def test_no_flipped_bit_goes_unnoticed() -> None:
    whole = to_bytes(Checkpoint({"step": 1}, {"x": np.arange(4.0)}))
    for place in range(0, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 1 << (place % 8)
        try:
            found = from_bytes(bytes(content))
        except ValueError:
            continue
        assert found.facts == {"step": 1}
        np.testing.assert_array_equal(found.arrays["x"], np.arange(4.0))


def test_arrays_of_every_dtype_come_back(tmp_path: Path) -> None:
    kinds = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int64, tf.uint32, tf.bool)
    arrays = {kind.name: tf.cast(tf.constant([[0, 1], [1, 0]]), kind).numpy() for kind in kinds}
    arrays["texts"] = np.array(["one", "three"])  # which a callback may have
    write(
        Checkpoint({"step": 3, "nan": float("nan")}, {**arrays, "scalar": np.array(2, np.float32)}), tmp_path / "x.npz"
    )
    found = read(tmp_path / "x.npz")
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert found.arrays["scalar"].shape == ()


@pytest.mark.parametrize(("changes", "message"), [
    ({"dataset": real_digits(400)}, r"data examples was 500 and is now 400"),
    ({"policy": "bfloat16"}, r"model variable 0 was kernel float32 \[3, 3, 1, 8\] and is now kernel bfloat16"),
    ({"batch_size": 32}, r"batch_size was 64 and is now 32"), ({"seed": 2}, r"seed was 1 and is now 2"),
    ({"optimizer": adam()}, r"optimizer was SGD and is now Adam"),
    ({"early_stopping_patience": 0}, r"callbacks was \['BestWeights', 'EarlyStopping'\] and is now \['BestWeights'\]"),
], ids=["data", "model", "batch size", "seed", "optimizer", "callbacks"])  # fmt: skip
def test_a_checkpoint_of_another_training_is_refused(
    changes: dict[str, Any], message: str, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    with pytest.raises(UserError, match=message):
        run(one_device(), tmp_path, **changes)


def test_a_checkpoint_of_earlier_code_may_know_more_of_its_progress() -> None:
    values = {**dataclasses.asdict(Progress(2, 3, 19)), "start": {"val/start_loss": 0.5}}
    assert Progress.of(values) == Progress(2, 3, 19)


class Counting(keras.callbacks.Callback):
    """Has all that a checkpoint keeps, and what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.best, self.window = 0, np.float32(0.5), [np.zeros(2), np.ones(3)]
        self.names: dict[Any, Any] = {1: ("a", None), "1": {2, 3}, np.int64(3): np.zeros(1), "3": np.ones(1)}
        self.function, self.other, self.left = len, object(), 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.left = 10

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        self.left -= 1


@pytest.mark.smoke
def test_the_state_of_a_callback_comes_back() -> None:
    one, arrays = Counting(), {}  # type: Counting, dict[str, np.ndarray]
    one.seen, one.best = 7, np.float32(0.25)
    state, left_out = state_of(one, "callbacks.0", arrays)
    state = json.loads(json.dumps(state))
    two = Counting()
    restore_attributes(two, state, arrays)
    assert (two.seen, two.best, type(two.best)) == (7, np.float32(0.25), np.float32)
    assert list(two.names) == list(one.names)
    assert (two.names[1], two.names["1"], two.names["3"][0]) == (("a", None), {2, 3}, 1.0)
    np.testing.assert_array_equal(two.window[1], np.ones(3))
    assert left_out == ["other (object)"]


def test_a_users_callback_goes_on_where_it_was(tmp_path: Path) -> None:
    mine = Counting()
    stop(one_device(), tmp_path, 10, callbacks=[mine], steps_per_call=1)
    assert (mine.seen, mine.left) == (10, 0)  # which is what it has at first
    other = Counting()
    trained, told = run(one_device(), tmp_path, callbacks=[other], steps_per_call=1)
    assert told.warnings == [
        "train.callbacks[0]: checkpoints do not include these attributes of Counting, so a resumed run starts without "
        "them: other (object)"
    ]
    assert (other.seen, other.left) == (trained.steps, 10 - trained.steps)


def test_what_a_callback_is_made_with_is_its_own_process(tmp_path: Path) -> None:
    """Such as a path of each worker's own, or a temporary folder; a checkpoint holds no headers with a key, either."""

    class Sending(keras.callbacks.Callback):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path, self.headers = path, {"Authorization": "Bearer a-key-of-1"}

    stop(one_device(), tmp_path, 10, callbacks=[Sending("there")])
    assert all("a-key-of-1" not in str(read(file).facts) for file in checkpoint_files(tmp_path / "checkpoints"))
    here = Sending("here")
    run(one_device(), tmp_path, callbacks=[here])
    assert here.path == "here"
