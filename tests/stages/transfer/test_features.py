"""Features of a frozen backbone stand for images: they teach the head the same, and are computed once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.augment import augment
from stages.checkpoints.forks import start_from
from stages.data.split import Split
from stages.features.kinds import IMAGES
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.settings.data import AugmentSettings
from stages.train import train
from stages.transfer.feature_cache import OnFeatures, on_features
from tests.stages.experiments import adam, flat, mirrored, one_device
from tests.stages.training.stopped import Stopper
from tests.stages.transfer.small import DATASET, build, given, inside, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("where", "changes"),
    [(mirrored, {}), (one_device, {"policy": "mixed_bfloat16", "pooled": False, "epochs": 1})],
    ids=["2 replicas", "bfloat16, not pooled"],
)
def test_features_teach_the_head_what_images_do(where: Callable[[], Strategy], changes: dict[str, Any]) -> None:
    ways = [run(where(), fine_tune_epochs=0, cache_features=way, **changes) for way in ("auto", "off")]
    (cached, with_features), (plain, without) = ways
    assert str(cached.record.params["features"]).startswith("on")
    difference = np.max(np.abs(flat(cached.model.network) - flat(plain.model.network)))
    assert difference <= (1e-3 if "policy" in changes else 1e-5)
    for epoch, row in without.rows.items():
        assert with_features.rows[epoch] == pytest.approx(row, abs=1e-3 if "policy" in changes else 1e-5)


class Computed(Stopper):
    """Counts the calls of a backbone that are made for features."""

    calls = 0

    def progress(self, done: int, total: int, note: str) -> None:
        self.calls += bool(done) and note.startswith("features of the backbone")


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
    np.testing.assert_array_equal(first.train.features["features"], second.train.features["features"])


def without_last_image(split: Split) -> Split:
    """Return `split` as a user's own stage changes it, with digests of what it was."""
    images = np.array(split.images[:])
    images[-1] = 0
    return replace(split.with_described(split.described), features={IMAGES: images})


def test_features_are_of_their_images_weights_and_layers(tmp_path: Path) -> None:
    features(tmp_path)
    other = build(one_device())
    kernel = inside(other.network).weights[0]
    kernel.assign(kernel + 1e-3)
    doubled = replace(DATASET, scalings={"images": replace(DATASET.scalings["images"], scale=(2.0,))})
    for made, dataset in (
        (other, DATASET),
        (build(one_device(), policy="mixed_bfloat16"), DATASET),
        (build(one_device(), doubled), doubled),
        (None, DATASET.with_each_split(without_last_image)),
    ):
        assert features(tmp_path, made, dataset)[1].calls > 0
    assert features(tmp_path)[1].calls == 0


def test_where_features_cannot_stand_for_images_there_are_none() -> None:
    where = one_device()
    changed, mixed = (augment(DATASET, AugmentSettings(**one)) for one in ({"horizontal_flip": True}, {"mixup": 0.2}))
    own = build(where, frozen=False)  # frozen as Keras' guide has it: dropout inside is on in training
    inside(own.network).trainable = False
    for made, dataset, changes, why in (
        (build(where), changed, {}, "images are augmented"),
        (build(where), mixed, {}, "images are augmented"),
        (own, DATASET, {}, "may be random in training"),
        (build(where, frozen=False), DATASET, {}, "no backbone is frozen"),
        (build(where, policy="float64"), DATASET, {}, "float32"),
        (build(where), DATASET, {"cache_features": "off"}, "train.cache_features=off"),
    ):
        left, data, said = on_features(made, dataset, where, given(**changes), Reporter(), None)
        assert (left is made, data is dataset, said[:5]) == (True, True, "off: ")
        assert why in said
    taught, _, said = on_features(build(where), DATASET, where, given(), Reporter(), None)
    assert isinstance(taught.network, OnFeatures)


def test_features_are_those_of_the_backbone_that_a_fork_takes_over(tmp_path: Path) -> None:
    """Its weights are neither those of the seed nor of a file, but of the run that it starts from."""
    where = one_device()
    told = given(fine_tune_epochs=0, optimizer=adam(learning_rate=0.1))
    train(build(where, frozen=False), DATASET, where, told, Reporter(), tmp_path / "a")
    trained = {}
    for way in ("auto", "off"):
        start_from(tmp_path / "a" / "checkpoints", tmp_path / way / "checkpoints")
        made, _ = run(where, tmp_path / way, epochs=4, fine_tune_epochs=0, cache_features=way)
        assert str(made.record.params["features"]).startswith("on" if way == "auto" else "off")
        trained[way] = flat(made.model.network)
    assert np.max(np.abs(trained["auto"] - trained["off"])) <= 1e-5
