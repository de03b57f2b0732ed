"""A run starts from the weights of a tracked run, freezes the backbone, then fine-tunes it, in a single record."""

import os
from pathlib import Path

import keras
import numpy as np
import pytest
from mlflow import MlflowClient

from stages.checkpoints.saved import DIGESTS
from stages.checkpoints.saved import TRAINED as SAVED
from stages.errors import UserError
from tests.pipeline.experiments import TRAINED, assert_refused, ran
from tests.stages.transfer.small import with_backbone

pytestmark = pytest.mark.slow

NETWORK = (
    f"model.network._target_={__name__}.network", "model.network.filters=[8]", "train.epochs=1",
    "pipeline.inspect=null",
)  # fmt: skip


def network(input_shape: tuple[int, int, int], num_classes: int, filters: list[int], **_: object) -> keras.Model:
    return with_backbone(input_shape, num_classes, filters[0])


def test_a_run_starts_from_the_weights_of_another(outputs: Path) -> None:
    source = ran(outputs, *NETWORK, "pipeline.evaluate=null")
    uri = f"runs:/{source.run_id}"
    words = (f"model.weights={uri}", "model.frozen=true", "train.fine_tune_epochs=1", "data.split_seed=7")
    tuned = ran(outputs, *NETWORK, *TRAINED, *words)
    assert (tuned.facts.known_test_images or 0) > 200, "of 360 test images, 72% of the data's others"
    assert source.facts.known_test_images is None
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    record = client.get_run(str(tuned.run_id)).data
    assert record.params["model.weights"] == uri
    assert (record.params["model/weights_loaded"], record.params["model/weights_of"]) == ("14", "network")
    assert record.params["train/features"] == "on: 8 per example"
    phases = client.get_metric_history(str(tuned.run_id), "train/phase")
    assert [(point.step, point.value) for point in phases] == [(1, 1.0), (2, 2.0)]
    assert len(list((outputs / "cache").glob("features-*/train.npy"))) == 1
    first, second = (np.load(one.folder / SAVED) for one in (source, tuned))
    same = [np.array_equal(first[f"weight.{place}"], second[f"weight.{place}"]) for place in range(14)]
    assert all(same[2:6])  # BatchNorm was trained neither with the head nor later
    assert not any(same[12:])
    assert np.isin(first[DIGESTS], second[DIGESTS]).all()  # a later evaluation sees them, without those weights


def test_a_path_without_weights_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """For the folder of a run, the error names the weights in it."""
    for name, content in {"empty.h5": b"", "text.weights.h5": b"weights", "page.keras": b"<html>"}.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe.h5")
    (tmp_path / "run" / "export" / "saved_model").mkdir(parents=True)
    (tmp_path / "run" / "export" / "saved_model" / "saved_model.pb").touch()
    for name in ("", "empty.h5", "text.weights.h5", "page.keras", "pipe.h5"):
        assert_refused([f"model.weights={tmp_path / name}"], "is not a file or folder with weights")
    error = assert_refused([f"model.weights={tmp_path / 'run'}"], "is not a file or folder with weights")
    assert error.fix == f"model.weights={tmp_path}/run/export/saved_model"


@pytest.mark.parametrize("given", ["runs:/0123456789abcdef0123456789abcdef", "models:/nobody/3"])
def test_an_unknown_model_is_refused_before_anything_is_recorded(given: str, outputs: Path) -> None:
    with pytest.raises(UserError, match=f"model.weights={given} cannot be loaded"):
        ran(outputs, *NETWORK, f"model.weights={given}")
    assert not list(outputs.glob("runs/*/*"))
