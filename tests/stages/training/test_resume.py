"""A training that was stopped, and went on, is the one that nobody stopped: to the bit, wherever it was stopped."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cases import step_of
from stages.errors import UserError
from stages.fit import fit
from stages.optimization.optimizers import build_optimizer
from stages.optimization.train_step import Step
from stages.reporter import Silent
from stages.results import Dataset, Strategy, Trained
from stages.settings.optimizer import ScheduleSettings, SgdSettings
from stages.settings.strategy import CentralStorageSettings, ModelParallelSettings
from stages.settings.train import FitSettings, TrainSettings
from stages.strategy import strategy
from stages.train import train
from stages.training.checkpoints import START, Checkpoint, from_bytes, newest, read, start_from, to_bytes, write
from stages.training.progress import Progress
from stages.training.serialization import restore_attributes, state_of
from stages.training.state import State
from tests.stages.experiments import adam, flat, mirrored, one_device, real_digits, settings, small_cnn

pytestmark = pytest.mark.slow

DATASET = real_digits(500)
"""Eight steps an epoch, the last of 52 examples."""


class Stopper(Silent):
    """Wants the end once `at` steps are over."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.done = at, 0
        self.rows: dict[int, dict[str, float]] = {}
        self.resumed_from: int | None = None
        self.warned: list[str] = []

    @property
    def requested(self) -> bool:
        return self.at is not None and self.done >= self.at

    def now(self) -> NoReturn:
        raise KeyboardInterrupt

    def nothing_to_keep(self) -> AbstractContextManager[None]:
        return nullcontext()

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        self.done = done

    def metrics(self, values: Any, step: int) -> None:
        self.rows[step] = {name: value for name, value in values.items() if "second" not in name and "wait" not in name}

    def resumed(self, step: int) -> None:
        self.resumed_from = step

    def warn(self, line: str) -> None:
        self.warned.append(line)

    @contextmanager
    def stopping(self) -> Iterator[Any]:
        yield self


def given(**changes: Any) -> TrainSettings:
    return settings(**{"epochs": 4, "steps_per_call": 3, "early_stopping_patience": 2, **changes})


def run(
    where: Strategy,
    folder: Path | None,
    at: int | None = None,
    policy: str = "float32",
    dropout: float = 0.3,
    dataset: Dataset = DATASET,
    **changes: Any,
) -> tuple[Trained | None, Stopper]:
    """Trains in `folder`, until `at` steps are over or to the end."""
    reporter, model = Stopper(at), small_cnn(dataset, where, policy, dropout)
    try:
        return train(model, dataset, where, given(**changes), reporter, folder), reporter
    except KeyboardInterrupt:
        return None, reporter


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "one device": (one_device, {}),
    "mirrored 2": (lambda: mirrored(2), {}),
    "mirrored 3, adam, EMA, clipped": (
        lambda: mirrored(3),
        {"optimizer": adam(ema_momentum=0.9, clip_norm=1.0, ema_use=True)},
    ),
    "mirrored 2, mixed_float16": (lambda: mirrored(2), {"policy": "mixed_float16"}),
    "one device, bfloat16": (one_device, {"policy": "bfloat16"}),
    "central storage": (lambda: strategy(CentralStorageSettings(deterministic=False)), {}),
    "model parallel": (lambda: strategy(ModelParallelSettings(deterministic=False)), {}),
    "patience": (one_device, {"monitor": "val_accuracy", "epochs": 6, "optimizer": SgdSettings(learning_rate=1e-5)}),
    "plateau": (
        one_device,
        {
            "monitor": "val_accuracy",
            "early_stopping_patience": 4,
            "schedule": ScheduleSettings(name="plateau", patience=1),
            "optimizer": SgdSettings(learning_rate=1e-5),
            "epochs": 6,
        },
    ),
    "own patience": (
        one_device,
        {
            "early_stopping_patience": 0,
            "callbacks": [
                {"_target_": "keras.callbacks.EarlyStopping", "monitor": "val_loss", "min_delta": 0.06, "patience": 2}
            ],
            "epochs": 8,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    """Stopped after the first step, within an epoch, at its end and at the end of the last one."""
    make, changes = CASES[case]
    whole, told = run(make(), None, **changes)
    assert whole is not None
    if "patience" in case:
        assert len(whole.history) < changes["epochs"]  # it ran out
    if case == "plateau":
        assert whole.history[-1]["train/learning_rate"] < whole.history[0]["train/learning_rate"]
    for at in (1, 5, 16, 31) if case == "one device" else (13,):
        folder = tmp_path / str(at)
        stopped, first = run(make(), folder, at, **changes)
        assert stopped is None
        resumed, second = run(make(), folder, **changes)
        assert resumed is not None
        assert second.resumed_from == first.done
        np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
        assert resumed.best_epoch == whole.best_epoch
        assert resumed.steps == whole.steps
        assert second.rows == told.rows


def test_loss_scale_ema_and_sums_are_restored(tmp_path: Path) -> None:
    """Of two replicas each its own sums; what would not show in the weights of a short training."""

    def made() -> tuple[Step, State]:
        where, told = mirrored(2), given(optimizer=adam(ema_momentum=0.9))
        model = small_cnn(DATASET, where, "mixed_float16")
        with where.distribution.scope():
            optimizer = build_optimizer(told.optimizer, 0.001)
        model.network.compile(optimizer)
        step = step_of(where, model, optimizer, told)
        return step, State(where, model, DATASET, told, (), step)

    (first, before), (second, after) = made(), made()
    scale, sums = first.loss_scale, first.totals.variables[0].values
    assert scale is not None
    for variable, value in ((scale.value, 4.0), (scale.good_steps, 7), (scale.skipped_steps, 2)):
        variable.assign(value)
    for part, value in zip(sums, (0.1, 0.2), strict=True):
        part.assign(value)
    assert first.ema is not None
    first.ema.values[0].assign(first.ema.values[0] + 1.0)
    progress = after.restore(from_bytes(to_bytes(before.read(Progress(1, 3, 11)))))
    assert (progress.epoch, progress.done, progress.step) == (1, 3, 11)
    assert second.loss_scale is not None
    assert second.ema is not None
    found = second.loss_scale
    assert [float(one.numpy()) for one in (found.value, found.good_steps, found.skipped_steps)] == [4, 7, 2]
    assert [float(part.numpy()) for part in second.totals.variables[0].values] == [0.1, 0.2]
    np.testing.assert_array_equal(second.ema.values[0].numpy(), first.ema.values[0].numpy())


def test_stopped_again_and_again_it_is_still_the_same(tmp_path: Path) -> None:
    whole, _ = run(one_device(), None)
    for at in (2, 7, 8, 15, 25):
        assert run(one_device(), tmp_path, at)[0] is None
    resumed, _ = run(one_device(), tmp_path)
    assert whole is not None
    assert resumed is not None
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))


def test_a_training_that_was_over_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = run(one_device(), tmp_path)
    again, told = run(one_device(), tmp_path)
    assert first is not None
    assert again is not None
    assert told.resumed_from == first.steps
    assert again.history == first.history
    np.testing.assert_array_equal(flat(first.model.network), flat(again.model.network))


@pytest.mark.parametrize("now", [one_device, lambda: mirrored(4)], ids=["one device", "4 replicas"])
def test_the_number_of_devices_may_change(now: Any, tmp_path: Path) -> None:
    whole, told = run(one_device(), None, dropout=0)
    assert run(mirrored(2), tmp_path, 13, dropout=0)[0] is None
    resumed, second = run(now(), tmp_path, dropout=0)
    assert whole is not None
    assert resumed is not None
    assert np.max(np.abs(flat(whole.model.network) - flat(resumed.model.network))) <= 1e-6
    for epoch, row in told.rows.items():
        assert second.rows[epoch] == pytest.approx(row, abs=1e-5)


@pytest.mark.parametrize("kind", ["plain", "EMA", "loss scale"])
def test_fit_goes_on_with_the_last_epoch(kind: str, tmp_path: Path) -> None:
    dataset = real_digits(512)
    optimizer = adam(ema_momentum=0.9, ema_use=True) if kind == "EMA" else adam()
    policy = "mixed_float16" if kind == "loss scale" else "float32"
    ours = given(optimizer=optimizer, steps_per_call=None)
    told = FitSettings(**{field.name: getattr(ours, field.name) for field in fields(ours) if field.name != "_target_"})

    def train_by_fit(folder: Path | None, at: int | None = None) -> tuple[Trained | None, Stopper]:
        reporter, where = Stopper(at), one_device()
        model = small_cnn(dataset, where, policy, dropout=0.3)
        try:
            return fit(model, dataset, where, told, reporter, folder), reporter
        except KeyboardInterrupt:
            return None, reporter

    whole, first = train_by_fit(None)
    assert train_by_fit(tmp_path, 20)[0] is None
    resumed, second = train_by_fit(tmp_path)
    assert whole is not None
    assert resumed is not None
    assert second.resumed_from == 16
    assert second.rows == first.rows
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
    again, third = train_by_fit(tmp_path)  # interrupted after training
    assert again is not None
    assert (third.resumed_from, third.rows) == (32, first.rows)
    np.testing.assert_array_equal(flat(whole.model.network), flat(again.model.network))
    if kind == "loss scale":
        found = newest(tmp_path / "checkpoints", print)
        assert found is not None
        assert "float32 []" in found.facts["parts"]["optimizer"]  # the scale


def test_checkpoints_are_written_when_they_are_due_and_the_last_ones_kept(tmp_path: Path) -> None:
    run(one_device(), tmp_path, 20, checkpoint_every_steps=5, checkpoints_kept=3, steps_per_call=4)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step-{step:08}.npz" for step in (10, 15, 20)]
    assert read(tmp_path / "checkpoints" / names[0]).step == 10


@pytest.mark.parametrize("damage", ["cut", "empty", "a bit", "another file"])
def test_a_damaged_checkpoint_is_passed_over(damage: str, tmp_path: Path) -> None:
    run(one_device(), tmp_path, 12, checkpoint_every_steps=5, steps_per_call=1)
    folder = tmp_path / "checkpoints"
    last = folder / "step-00000012.npz"
    content = bytearray(last.read_bytes())
    if damage == "a bit":
        content[len(content) // 2] ^= 1
    last.write_bytes(
        {"cut": content[:-100], "empty": bytearray(), "another file": bytearray(b"PK not so")}.get(damage, content)
    )
    (folder / ".partial-step-00000013.npz").write_bytes(content)
    whole, _ = run(one_device(), None)
    resumed, told = run(one_device(), tmp_path)
    assert told.resumed_from == 10
    assert told.warned[0].startswith("the checkpoint step-00000012.npz is passed over: ")
    assert (folder / "damaged-step-00000012.npz").is_file()
    assert whole is not None
    assert resumed is not None
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
    assert not list(folder.glob(".partial-*"))


def test_a_damaged_checkpoint_costs_no_later_one(tmp_path: Path) -> None:
    run(one_device(), tmp_path, 12, checkpoints_kept=1)
    [last] = (tmp_path / "checkpoints").glob("step-*.npz")
    last.write_bytes(last.read_bytes()[:-100])
    _, told = run(one_device(), tmp_path, 5, checkpoints_kept=1)
    assert told.resumed_from is None
    _, told = run(one_device(), tmp_path, 9, checkpoints_kept=1)
    assert told.resumed_from == 7


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


def test_a_checksum_tells_what_the_zip_file_does_not() -> None:
    content = {"x": np.arange(4.0)}
    whole = to_bytes(Checkpoint({"step": 1}, content))
    wrong = to_bytes(Checkpoint({"step": 2}, content))
    assert from_bytes(whole).step == 1
    parts = dict(np.load(BytesIO(whole)))
    parts["checksum"] = dict(np.load(BytesIO(wrong)))["checksum"]
    file = BytesIO()
    np.savez(file, **parts)
    with pytest.raises(ValueError, match="its checksum is wrong"):
        from_bytes(file.getvalue())


def test_arrays_of_every_dtype_come_back(tmp_path: Path) -> None:
    kinds = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int64, tf.uint32, tf.bool)
    arrays = {kind.name: tf.cast(tf.constant([[0, 1], [1, 0]]), kind).numpy() for kind in kinds}
    write(
        Checkpoint({"step": 3, "nan": float("nan")}, {**arrays, "scalar": np.array(2, np.float32)}),
        tmp_path / "x.npz",
    )
    found = read(tmp_path / "x.npz")
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert found.arrays["scalar"].shape == ()


def test_what_cannot_be_written_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": real_digits(400)}, r"data examples was 500 and is 400"),
        ({"policy": "bfloat16"}, r"model variable 0 was kernel float32 \[3, 3, 1, 8\] and is kernel bfloat16"),
        ({"batch_size": 32}, r"batch_size was 64 and is 32"),
        ({"seed": 2}, r"seed was 1 and is 2"),
        ({"optimizer": adam()}, r"optimizer was SGD and is Adam"),
        ({"early_stopping_patience": 0}, r"callbacks was \['BestWeights', 'EarlyStopping'\] and is \['BestWeights'\]"),
    ],
    ids=["data", "model", "batch size", "seed", "optimizer", "callbacks"],
)
def test_a_checkpoint_of_another_training_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    run(one_device(), tmp_path, 4)
    with pytest.raises(UserError, match=message):
        run(one_device(), tmp_path, **changes)


def test_a_fork_takes_the_weights_and_other_settings(tmp_path: Path) -> None:
    source, fork = tmp_path / "a", tmp_path / "b"
    run(one_device(), source, 20)
    start_from(source / "checkpoints", fork / "checkpoints")
    assert (fork / "checkpoints" / START).is_file()
    before = newest(source / "checkpoints", print)
    assert before is not None
    trained, told = run(one_device(), fork, optimizer=adam(), batch_size=32, epochs=5)
    assert trained is not None
    assert told.resumed_from == 2 * 16  # 20 steps of 64 are within the third epoch, which begins again
    assert list(told.rows) == [3, 4, 5]
    again, _ = run(one_device(), fork, optimizer=adam(), batch_size=32, epochs=5)  # its own checkpoints come first
    assert again is not None
    np.testing.assert_array_equal(flat(again.model.network), flat(trained.model.network))


def test_a_fork_has_its_own_learning_rate(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", 16)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", optimizer=SgdSettings(learning_rate=1e-4))
    assert [row["train/learning_rate"] for row in told.rows.values()] == pytest.approx([1e-4] * 3)


def test_a_fork_that_switches_the_ema_on_averages_from_the_weights_it_takes(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a")
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    source = newest(tmp_path / "a" / "checkpoints", print)
    assert source is not None
    before = source.facts["progress"]["rows"][-1]["val/accuracy"]
    _, told = run(one_device(), tmp_path / "b", epochs=5, optimizer=SgdSettings(ema_momentum=0.999, ema_use=True))
    assert told.rows[5]["val/accuracy"] >= before - 0.05


def test_a_fork_with_another_optimizer_says_what_starts_again(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", 16)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", optimizer=adam())
    assert told.warned == ["the optimizer starts again, and its learning-rate schedule with it"]


def test_a_fork_with_another_schedule_is_where_it_would_be_in_it(tmp_path: Path) -> None:
    cosine: dict[str, Any] = {"schedule": ScheduleSettings(name="cosine"), "epochs": 4}
    _, whole = run(one_device(), None, early_stopping_patience=0, **cosine)
    run(one_device(), tmp_path / "a", 16)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    _, told = run(one_device(), tmp_path / "b", early_stopping_patience=0, **cosine)
    assert told.warned == []
    for epoch in (3, 4):
        assert told.rows[epoch]["train/learning_rate"] == whole.rows[epoch]["train/learning_rate"]


def test_a_fork_with_the_same_order_goes_on_within_the_epoch(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", 20, steps_per_call=4)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b", epochs=6)
    assert trained is not None
    assert told.resumed_from == 20


def test_a_fork_with_nothing_left_to_do_is_refused(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a")
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    with pytest.raises(UserError, match=r"train.epochs=4, and 4 are over.*Try: train.epochs=8"):
        run(one_device(), tmp_path / "b", early_stopping_patience=0)


class Counting(keras.callbacks.Callback):
    """Has all that a checkpoint keeps, and what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.best, self.window = 0, np.float32(0.5), [np.zeros(2), np.ones(3)]
        self.names: dict[Any, Any] = {1: ("a", None), "1": {2, 3}, np.int64(3): np.zeros(1), "3": np.ones(1)}
        self.function, self.other = len, object()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1


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
    run(one_device(), tmp_path, 10, callbacks=[mine], steps_per_call=1)
    assert mine.seen == 10
    other = Counting()
    trained, told = run(one_device(), tmp_path, callbacks=[other], steps_per_call=1)
    assert told.warned == ["train.callbacks[0]: a checkpoint does not keep Counting's other (object)"]
    assert trained is not None
    assert other.seen == trained.steps


def test_the_best_weights_of_a_stopped_run_are_in_its_checkpoint(tmp_path: Path) -> None:
    run(one_device(), tmp_path, 17)
    found = newest(tmp_path / "checkpoints", print)
    assert found is not None
    best = found.facts["callbacks"][0]
    assert best["kind"] == "BestWeights"
    assert best["state"]["best_epoch"] == 2
    assert any(name.startswith("callbacks.0.weights") for name in found.arrays)
