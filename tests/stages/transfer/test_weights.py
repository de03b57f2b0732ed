"""Pretrained weights: of a file they fit the network, its backbone, or nothing."""

from pathlib import Path

import keras
import numpy as np
import pytest

from stages.errors import UserError
from stages.export import export
from stages.load.synthetic import synthetic
from stages.results import Trained
from stages.settings.data import SyntheticSettings
from stages.settings.model import ApplicationSettings, ModelSettings
from stages.settings.results import ExportSettings
from stages.transfer.pretrained import load_weights
from tests.conftest import shared
from tests.stages.experiments import built_of, flat, one_device
from tests.stages.transfer.small import DATASET, build, inside, weights_inside

pytestmark = pytest.mark.slow


def test_weights_of_a_file_fit_the_network_its_backbone_or_nothing(tmp_path: Path) -> None:
    where = one_device()
    source = build(where, frozen=False)
    network = source.network
    network.set_weights([np.random.default_rng(1).random(w.shape).astype(np.float32) for w in network.get_weights()])
    network.save_weights(tmp_path / "whole.weights.h5")
    inside(network).save_weights(tmp_path / "backbone.weights.h5")
    exported = export(Trained(source, (), 1, 0), DATASET, ExportSettings(), tmp_path)
    told = SyntheticSettings(split_seed=1, examples=64, test_examples=16, height=8, width=8, channels=1, num_classes=2)
    binary = synthetic(told)
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


def test_weights_of_imagenet_need_a_network_of_keras_and_a_way_to_get_them() -> None:
    with pytest.raises(UserError, match=r"imagenet fit only the networks of keras.applications"):
        build(one_device(), weights="imagenet")


def test_weights_that_a_network_would_use_in_part_are_refused(tmp_path: Path) -> None:
    """The first EfficientNets scale by a layer that takes its statistics only when it is adapted."""
    network = ApplicationSettings(name="EfficientNetB0", dropout=0.0)
    (tmp_path / "a.weights.h5").touch()
    data = synthetic(SyntheticSettings(split_seed=1, examples=200, test_examples=16))
    with pytest.raises(UserError, match="a Normalization layer, which would use only part"):
        built_of(network, data, one_device(), weights=str(tmp_path / "a.weights.h5"))


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
