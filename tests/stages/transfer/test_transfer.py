"""A frozen backbone stays as it is, its features stand for images, and two phases are one training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from stages.augment import augment
from stages.errors import UserError
from stages.export import export
from stages.load.synthetic import synthetic
from stages.model import model
from stages.networks.precision import last_dtype
from stages.reporter import Silent
from stages.results import Dataset, Model, Split, Strategy, Trained
from stages.settings.data import SyntheticSettings
from stages.settings.images import AugmentSettings
from stages.settings.model import ModelSettings, PrecisionSettings
from stages.settings.optimizer import ScheduleSettings
from stages.settings.results import ExportSettings
from stages.settings.strategy import CentralStorageSettings
from stages.settings.train import TrainSettings
from stages.strategy import strategy
from stages.train import train
from stages.training.checkpoints import Checkpoint, newest, read, start_from, write
from stages.training.progress import Progress
from stages.transfer.backbone import backbone_of
from stages.transfer.feature_cache import OnFeatures, on_features
from stages.transfer.pretrained import load_weights
from tests.conftest import shared
from tests.stages.experiments import adam, flat, mirrored, one_device, real_digits, settings
from tests.stages.training.test_resume import Stopper

pytestmark = pytest.mark.slow

DATASET = real_digits(150)
"""Three steps an epoch, the last of 22 examples."""


def with_backbone(
    input_shape: tuple[int, int, int], num_classes: int, filters: int = 8, pooled: bool = True, dropout: float = 0.3
) -> keras.Model:
    """A small network such as those of keras.applications: BatchNorm and dropout inside, a head behind."""
    images = keras.Input(input_shape)
    inner = keras.layers.Conv2D(filters, 3, name="conv_1")(images)
    inner = keras.layers.BatchNormalization(synchronized=True)(inner)
    inner = keras.layers.Dropout(0.5)(keras.layers.ReLU()(inner))
    inner = keras.layers.Conv2D(filters, 3, name="conv_2")(inner)
    inner = keras.layers.ReLU()(keras.layers.BatchNormalization(synchronized=True)(inner))
    backbone = keras.Model(images, inner, name="backbone")
    inputs = keras.Input(input_shape)
    features = backbone(inputs[..., ::-1])
    pool = keras.layers.GlobalAveragePooling2D() if pooled else keras.layers.Flatten()
    outputs = keras.layers.Dense(num_classes, dtype=last_dtype())(keras.layers.Dropout(dropout)(pool(features)))
    return keras.Model(inputs, outputs, name="small")


def build(
    where: Strategy, dataset: Dataset = DATASET, frozen: bool = True, policy: str = "float32", **given: Any
) -> Model:
    weights = given.pop("weights", "none")
    network = {"_target_": f"{__name__}.with_backbone", **given}
    precision = PrecisionSettings(policy=policy)
    told = ModelSettings(network=network, precision=precision, seed=1, frozen=frozen, weights=str(weights))
    return model(dataset, where, told)


def given(**changes: Any) -> TrainSettings:
    return settings(
        **{
            "epochs": 2,
            "steps_per_call": 2,
            "fine_tune_epochs": 2,
            "fine_tune_layers": 4,
            "optimizer": adam(),
            **changes,
        }
    )


def run(
    where: Strategy, folder: Path | None = None, at: int | None = None, cache: Path | None = None, **changes: Any
) -> tuple[Trained | None, Stopper]:
    """Trains in `folder`, until `at` steps are over or to the end."""
    reporter = Stopper(at)
    network = {name: changes.pop(name) for name in ("policy", "pooled", "dropout") if name in changes}
    try:
        return train(build(where, **network), DATASET, where, given(**changes), reporter, folder, cache), reporter
    except KeyboardInterrupt:
        return None, reporter


def weights_inside(network: keras.Model) -> np.ndarray:
    backbone = backbone_of(network)
    assert backbone is not None
    return np.concatenate([weight.ravel() for weight in backbone.get_weights()])


@pytest.mark.parametrize("cached", ["auto", "off"])
def test_a_frozen_backbone_stays_to_the_bit(cached: str) -> None:
    """Statistics included; its dropout is off in training."""
    where = one_device()
    made = build(where)
    backbone, before = backbone_of(made.network), weights_inside(made.network)
    assert backbone is not None
    images = tf.cast(DATASET.train.images[:4], tf.float32)
    np.testing.assert_array_equal(backbone(images, training=True), backbone(images, training=False))
    head = flat(made.network)[len(before) :]
    trained = train(made, DATASET, where, given(fine_tune_epochs=0, cache_features=cached))
    np.testing.assert_array_equal(weights_inside(trained.model.network), before)
    assert np.max(np.abs(flat(trained.model.network)[len(before) :] - head)) > 1e-3
    assert trained.record.params["features"] == ("on: 1 × 1 × 8 an image" if cached == "auto" else "off: as asked")
    assert trained.record.params["phase_1_trained_parameters"] == 8 * 10 + 10


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        (one_device, {}),
        (lambda: mirrored(2), {}),
        (one_device, {"policy": "mixed_bfloat16", "pooled": False, "epochs": 1}),
    ],
    ids=["one device", "2 replicas", "bfloat16, not pooled"],
)
def test_features_teach_the_head_what_images_do(where: Callable[[], Strategy], changes: dict[str, Any]) -> None:
    ways = [run(where(), fine_tune_epochs=0, cache_features=way, **changes) for way in ("auto", "off")]
    (cached, with_features), (plain, without) = ways
    assert cached is not None
    assert plain is not None
    assert str(cached.record.params["features"]).startswith("on")
    difference = np.max(np.abs(flat(cached.model.network) - flat(plain.model.network)))
    assert difference <= (1e-3 if "policy" in changes else 1e-5)
    for epoch, row in without.rows.items():
        assert with_features.rows[epoch] == pytest.approx(row, abs=1e-3 if "policy" in changes else 1e-5)


def test_two_replicas_equal_one_device_in_both_phases() -> None:
    """The backbone has dropout, which would differ from replica to replica if it were not off."""
    (one, _), (two, _) = (run(where, cache_features="off", dropout=0.0) for where in (one_device(), mirrored(2)))
    assert one is not None
    assert two is not None
    assert np.max(np.abs(flat(one.model.network) - flat(two.model.network))) <= 1e-5


CASES: dict[str, tuple[Callable[[], Strategy], tuple[int, ...], dict[str, Any]]] = {
    "one device": (one_device, (4, 6, 8), {}),
    "mirrored 2, mixed_float16, last weights": (
        lambda: mirrored(2),
        (8,),
        {"policy": "mixed_float16", "restore_best": False},
    ),
    "central storage": (lambda: strategy(CentralStorageSettings(deterministic=False)), (8,), {}),
    "EMA, stopped early, cosine": (
        one_device,
        (12,),
        {
            "optimizer": adam(learning_rate=1e-9, ema_momentum=0.9, ema_use=True),
            "epochs": 9,
            "monitor": "val_accuracy",
            "early_stopping_patience": 2,
            "schedule": ScheduleSettings(name="cosine"),
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_of_two_phases_equals_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    """Stopped in the first phase, at the border, after the second's first step, and within it."""
    make, places, changes = CASES[case]
    whole, told = run(make(), None, **changes)
    assert whole is not None
    phases = [row["train/phase"] for row in whole.history]
    assert phases == sorted(phases)
    assert phases[-2:] == [2.0, 2.0]
    if "early" in case:
        assert len(phases) < 9 + 2
    for at in places:
        folder = tmp_path / str(at)
        assert run(make(), folder, at, **changes)[0] is None
        resumed, second = run(make(), folder, **changes)
        assert resumed is not None
        np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
        assert (resumed.best_epoch, resumed.steps) == (whole.best_epoch, whole.steps)
        assert second.rows == told.rows


def test_phases_are_one_history_with_rates_and_weights_of_their_own(tmp_path: Path) -> None:
    where, said = one_device(), []

    class Listening(Stopper):
        def say(self, line: str) -> None:
            said.append(line)

    made = build(where)
    before = weights_inside(made.network)
    reporter = Listening()
    trained = train(made, DATASET, where, given(fine_tune_rate=0.5, restore_best=False), reporter, tmp_path)
    assert list(reporter.rows) == [1, 2, 3, 4]
    rates = [row["train/learning_rate"] for row in trained.history]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4])
    assert [line for line in said if line.startswith("phase")] == ["phase 2: 674 weights are trained, 144 are frozen"]
    assert [line.split()[1] for line in said if line.startswith("epoch")] == ["1/4", "2/4", "3/4", "4/4"]
    changed = [
        weight.path
        for weight, old in zip(backbone_of(made.network).weights, np.split(before, _ends(made)), strict=True)  # type: ignore[union-attr]
        if not np.array_equal(keras.ops.convert_to_numpy(weight).ravel(), old)
    ]
    assert changed == ["conv_2/kernel", "conv_2/bias"]  # neither conv_1 nor any BatchNorm
    assert trained.record.params["phase_2_trained_parameters"] == 674


def _ends(made: Model) -> np.ndarray:
    backbone = backbone_of(made.network)
    assert backbone is not None
    return np.cumsum([weight.size for weight in backbone.get_weights()])[:-1]


def test_the_best_weights_of_a_frozen_training_are_those_of_the_whole_network(tmp_path: Path) -> None:
    trained, _ = run(one_device(), tmp_path, fine_tune_epochs=0)
    assert trained is not None
    again = build(one_device(), weights=tmp_path / "checkpoints" / "best.weights.h5", frozen=False)
    np.testing.assert_array_equal(flat(again.network), flat(trained.model.network))
    assert again.record.params["weights_of"] == "network"


def test_the_second_phase_begins_with_the_best_of_the_first(tmp_path: Path) -> None:
    """At a rate at which nothing is learnt, its scores are those of the best epoch, which stays the best of both."""
    wild: dict[str, Any] = {"optimizer": adam(learning_rate=30.0), "fine_tune_rate": 1e-12}
    trained, _ = run(one_device(), tmp_path, epochs=4, **wild)
    assert trained is not None
    losses = [row["val/loss"] for row in trained.history]
    assert trained.best_epoch < 4
    assert losses[4] == pytest.approx(min(losses[:4]), rel=1e-5)
    assert trained.record.metrics["val/best_loss"] == min(losses)
    again = build(one_device(), weights=tmp_path / "checkpoints" / "best.weights.h5", frozen=False)
    np.testing.assert_array_equal(flat(again.network), flat(trained.model.network))


class Computed(Stopper):
    """Counts the calls of a backbone that are made for features."""

    calls = 0

    def progress(self, done: int, total: int, images_per_second: float | None, note: str) -> None:
        self.calls += note == "features of the backbone"


def features(cache: Path, made: Model | None = None, dataset: Dataset = DATASET) -> tuple[Dataset, Computed]:
    where, told = one_device(), Computed()
    _, data, why = on_features(made or build(where), dataset, where, given(), told, cache)
    assert why.startswith("on")
    return data, told


def test_features_are_computed_once(tmp_path: Path) -> None:
    first, told = features(tmp_path)
    assert told.calls == 3 + -(-len(DATASET.val) // 64)
    second, told = features(tmp_path)
    assert told.calls == 0
    np.testing.assert_array_equal(first.train.images, second.train.images)
    [kept] = tmp_path.glob("features-*/train.npy")
    content = bytearray(kept.read_bytes())
    content[-3] ^= 1
    kept.write_bytes(content)
    third, told = features(tmp_path)
    assert told.calls > 0
    assert "is damaged, and computed again" in told.warned[0]
    np.testing.assert_array_equal(first.train.images, third.train.images)
    assert features(tmp_path)[1].calls == 0
    assert not list(tmp_path.glob(".partial-*"))


def test_features_are_of_their_images_weights_and_layers(tmp_path: Path) -> None:
    features(tmp_path)
    other = build(one_device())
    kernel = backbone_of(other.network).weights[0]  # type: ignore[union-attr]
    kernel.assign(kernel + 1e-3)
    doubled = replace(DATASET, normalization=replace(DATASET.normalization, scale=(2.0,)))
    for made, dataset in (
        (other, DATASET),
        (build(one_device(), policy="mixed_bfloat16"), DATASET),
        (build(one_device(), doubled), doubled),
        (None, replace(DATASET, fingerprint="0" * 32)),
    ):
        assert features(tmp_path, made, dataset)[1].calls > 0
    assert features(tmp_path)[1].calls == 0


def test_where_features_cannot_stand_for_images_there_are_none() -> None:
    where = one_device()
    changed = augment(DATASET, AugmentSettings(horizontal_flip=True))
    mixed = augment(DATASET, AugmentSettings(mixup=0.2))
    own = build(where, frozen=False)  # frozen as Keras' guide has it: dropout inside is on in training
    backbone = backbone_of(own.network)
    assert backbone is not None
    backbone.trainable = False
    for made, dataset, changes, why in (
        (build(where), changed, {}, "images are changed"),
        (build(where), mixed, {}, "images are changed"),
        (own, DATASET, {}, "may be random in training"),
        (build(where, frozen=False), DATASET, {}, "no backbone is frozen"),
        (build(where, policy="float64"), DATASET, {}, "float32"),
        (build(where), DATASET, {"cache_features": "off"}, "as asked"),
    ):
        left, data, said = on_features(made, dataset, where, given(**changes), Silent(), None)
        assert left is made
        assert data is dataset
        assert said.startswith("off: ")
        assert why in said
    taught, _, said = on_features(build(where), DATASET, where, given(), Silent(), None)
    assert isinstance(taught.network, OnFeatures)


def test_a_fork_of_a_frozen_training_goes_on_with_fine_tuning(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", fine_tune_epochs=0)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b")
    assert trained is not None
    assert list(told.rows) == [3, 4]
    assert [row["train/phase"] for row in trained.history] == [2.0, 2.0]


def test_a_fork_of_a_fine_tuned_training_has_the_epochs_that_it_asks_for(tmp_path: Path) -> None:
    run(one_device(), tmp_path / "a", epochs=1, fine_tune_epochs=1)
    start_from(tmp_path / "a" / "checkpoints", tmp_path / "b" / "checkpoints")
    trained, told = run(one_device(), tmp_path / "b", epochs=4, fine_tune_epochs=1)
    assert trained is not None
    assert list(told.rows) == [3, 4, 5]
    assert [row["train/phase"] for row in trained.history] == [1.0, 1.0, 2.0]


def test_features_are_those_of_the_backbone_that_a_fork_takes_over(tmp_path: Path) -> None:
    """Its weights are neither those of the seed nor of a file, but of the run that it starts from."""
    where = one_device()
    told = given(fine_tune_epochs=0, optimizer=adam(learning_rate=0.1))
    train(build(where, frozen=False), DATASET, where, told, Silent(), tmp_path / "a")
    trained = {}
    for way in ("auto", "off"):
        start_from(tmp_path / "a" / "checkpoints", tmp_path / way / "checkpoints")
        made, _ = run(where, tmp_path / way, epochs=4, fine_tune_epochs=0, cache_features=way)
        assert made is not None
        assert str(made.record.params["features"]).startswith("on" if way == "auto" else "off")
        trained[way] = flat(made.model.network)
    assert np.max(np.abs(trained["auto"] - trained["off"])) <= 1e-5


def test_a_checkpoint_without_phases_is_read(tmp_path: Path) -> None:
    whole, _ = run(one_device(), None, fine_tune_epochs=0)
    run(one_device(), tmp_path, 4, fine_tune_epochs=0)
    [path] = (tmp_path / "checkpoints").glob("step-*.npz")
    found = read(path)
    old = {name: value for name, value in found.facts["progress"].items() if name not in ("phase", "began")}
    write(Checkpoint({**found.facts, "progress": old}, found.arrays), path)
    resumed, second = run(one_device(), tmp_path, fine_tune_epochs=0)
    assert whole is not None
    assert resumed is not None
    assert second.resumed_from
    np.testing.assert_array_equal(flat(whole.model.network), flat(resumed.model.network))
    assert Progress.of(old | {"epoch": 1}).phase == 0


def test_a_checkpoint_of_a_phase_that_is_not_asked_for_is_refused(tmp_path: Path) -> None:
    run(one_device(), tmp_path, 8)
    assert newest(tmp_path / "checkpoints", print) is not None
    with pytest.raises(UserError, match=r"it fine-tunes, and train\.fine_tune_epochs=0"):
        run(one_device(), tmp_path, fine_tune_epochs=0)


@pytest.mark.smoke
def test_what_cannot_be_fine_tuned_is_refused_before_the_first_phase() -> None:
    where = one_device()
    with pytest.raises(UserError, match=r"none is frozen.*Try: model.frozen=true"):
        train(build(where, frozen=False), DATASET, where, given())
    with pytest.raises(UserError, match=r"fine_tune_layers=2: the last of them hold no weights but BatchNorm's"):
        train(build(where), DATASET, where, given(fine_tune_layers=2))
    with pytest.raises(UserError, match=r"cnn has no layer named backbone"):
        model(DATASET, where, ModelSettings(seed=1, frozen=True, precision=PrecisionSettings(), network=_cnn()))


def _cnn() -> dict[str, Any]:
    return {"_target_": "stages.networks.cnn.cnn", "filters": [8], "kernel_size": 3, "dropout": 0.0}


def test_weights_of_a_file_fit_the_network_its_backbone_or_nothing(tmp_path: Path) -> None:
    where = one_device()
    source = build(where, frozen=False)
    network = source.network
    network.set_weights([np.random.default_rng(1).random(w.shape).astype(np.float32) for w in network.get_weights()])
    backbone = backbone_of(network)
    assert backbone is not None
    network.save_weights(tmp_path / "whole.weights.h5")
    backbone.save_weights(tmp_path / "backbone.weights.h5")
    exported = export(_trained(source), DATASET, ExportSettings(), tmp_path)
    binary = replace(synthetic_like(), class_names=("a", "b"))
    for path in (tmp_path / "whole.weights.h5", exported.path):
        same = build(where, weights=path)
        assert same.record.params["weights_of"] == "network"
        np.testing.assert_array_equal(flat(same.network), flat(network))
    for path in (tmp_path / "whole.weights.h5", tmp_path / "backbone.weights.h5", exported.path):
        fresh, other = build(where, binary), build(where, binary, weights=path)
        assert (other.record.params["weights_of"], other.record.params["weights_loaded"]) == ("backbone", 12)
        np.testing.assert_array_equal(weights_inside(other.network), weights_inside(network))
        for one, two in zip(fresh.network.get_weights()[12:], other.network.get_weights()[12:], strict=True):
            np.testing.assert_array_equal(one, two)
        with pytest.raises(UserError, match=r"conv_1/kernel.*\[3, 3, 1, 16\]"):
            build(where, weights=path, filters=16)
    (tmp_path / "no.weights.h5").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        build(where, weights=tmp_path / "no.weights.h5")


def synthetic_like() -> Dataset:
    """Returns images of the digits' size in two classes."""
    told = SyntheticSettings(split_seed=1, examples=64, test_examples=16, height=8, width=8, channels=1, num_classes=2)
    return synthetic(told)


def _trained(made: Model) -> Trained:
    return Trained(made, (), 1, 0)


def test_weights_of_imagenet_need_a_network_of_keras_and_a_way_to_get_them() -> None:
    with pytest.raises(UserError, match=r"those of a network of keras.applications, and this is none"):
        build(one_device(), weights="imagenet")


def test_weights_that_a_network_would_use_in_part_are_refused(tmp_path: Path) -> None:
    """The first EfficientNets scale by a layer that takes its statistics only when it is adapted."""
    network: dict[str, Any] = {
        "_target_": "stages.networks.applications.application",
        "name": "EfficientNetB0",
        "arguments": {},
    }
    network |= {"dropout": 0.0, "single_logit": False}
    (tmp_path / "a.weights.h5").touch()
    data = replace(DATASET, train=_large(DATASET.train), val=_large(DATASET.val), test=_large(DATASET.test))
    told = ModelSettings(
        network=network, precision=PrecisionSettings(policy="float32"), seed=1, weights=str(tmp_path / "a.weights.h5")
    )
    with pytest.raises(UserError, match="a Normalization layer, which would not use all of them"):
        model(data, one_device(), told)


def _large(split: Split) -> Split:
    return Split(np.zeros((len(split), 32, 32, 3), np.uint8), split.labels)


def test_real_weights_of_both_formats_are_the_same() -> None:
    images, found = keras.Input((32, 32, 3)), []
    for name in (
        "mobilenet_v2_0.35_224_no_top.weights.h5",
        "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_224_no_top.h5",
    ):
        path = shared("weights", name)
        backbone = keras.applications.MobileNetV2((32, 32, 3), 0.35, include_top=False, weights=None, name="backbone")
        network = keras.Model(images, keras.layers.Dense(5)(backbone(images)))
        told = load_weights(network, ModelSettings(network=None, weights=str(path)))
        assert told == {"weights_loaded": 260, "weights_of": "backbone"}
        found.append(weights_inside(network))
    assert found[0].size == 410_208
    np.testing.assert_array_equal(found[0], found[1])


def _backbone(kind: str, shape: tuple[int, int, int]) -> keras.Model:
    layers = [
        keras.layers.Conv2D(4, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Lambda(abs),
        keras.layers.Conv2D(4, 3, activation="relu"),
    ]
    if kind == "unbuilt":
        return keras.Sequential(layers, name="backbone")
    if kind == "nested":
        inner = keras.Sequential([keras.Input(shape), *layers], name="inner")
        return keras.Sequential([keras.Input(shape), inner], name="backbone")
    if kind == "subclassed":
        return Subclassed(layers)
    return keras.Sequential([keras.Input(shape), *layers], name="backbone")


class Subclassed(keras.Model):
    """A backbone that is no graph of layers."""

    def __init__(self, inside: list[keras.layers.Layer]) -> None:
        super().__init__(name="backbone")
        self.inside = inside

    def call(self, images: Any) -> Any:
        for layer in self.inside:
            images = layer(images)
        return images


def any_kind(input_shape: tuple[int, int, int], num_classes: int, kind: str, core: str = "graph") -> keras.Model:
    backbone, inputs = _backbone(kind, input_shape), keras.Input(input_shape)
    behind = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(num_classes, dtype=last_dtype())]
    if core == "sequential":
        return keras.Sequential([inputs, backbone, *behind], name="small")
    features = backbone(inputs)
    if core == "shared":
        features = keras.layers.add([features, backbone(inputs[:, ::-1])])
    return keras.Model(inputs, behind[1](behind[0](features)), name="small")


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        ("sequential", "graph"),
        ("sequential", "sequential"),
        ("sequential", "shared"),
        ("nested", "graph"),
        ("unbuilt", "graph"),
        ("subclassed", "graph"),
    ],
)
def test_any_kind_of_backbone_is_frozen_and_its_top_trained(kind: str, core: str) -> None:
    """Through its features where it can be cut off, else with the images."""
    where, network = one_device(), {"_target_": f"{__name__}.any_kind", "kind": kind, "core": core}
    told = ModelSettings(network=network, precision=PrecisionSettings(policy="float32"), seed=1, frozen=True)
    made = model(DATASET, where, told)
    before = weights_inside(made.network)
    trained = train(made, DATASET, where, given(epochs=1, fine_tune_epochs=0, restore_best=False))
    np.testing.assert_array_equal(weights_inside(trained.model.network), before)
    assert str(trained.record.params["features"])[:3] == ("off" if "shared" in core else "on:")
    made = model(DATASET, where, told)
    train(made, DATASET, where, given(epochs=1, fine_tune_epochs=1, fine_tune_layers=1, restore_best=False))
    assert np.any(weights_inside(made.network) != before)


def test_a_backbone_without_a_head_is_refused() -> None:
    told = ModelSettings(network={"_target_": f"{__name__}._headless"}, seed=1, frozen=True)
    told = replace(told, precision=PrecisionSettings(policy="float32"))
    with pytest.raises(UserError, match="has no weights but those of its backbone"):
        model(DATASET, one_device(), told)


def _headless(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs)), name="backbone")
