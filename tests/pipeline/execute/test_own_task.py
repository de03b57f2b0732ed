"""Tasks chosen on the command line, from the table to the export, on data sets of scikit-learn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn import metrics as sk

from pipeline.checks.registry import check_rules
from stages.evaluation.predictions import read_columns
from tests import commands
from tests.pipeline.experiments import experiment, only_folder


def run(name: str, folder: Path, *words: str) -> tuple[Path, str]:
    """Train on a data set of scikit-learn as a table; return the run's folder and its output."""
    bunch: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    weight = np.random.default_rng(0).uniform(0.2, 2, len(bunch.frame)).round(3)
    bunch.frame.assign(weight=weight).to_csv(folder / f"{name}.csv", index=False)
    done = commands.succeed(
        "data=table", f"data.files={folder}/{name}.csv", "data.target=target", *words,
        "pipeline.inspect=null", "evaluate.baseline=false", "export=keras", "tracking=off", f"outputs={folder}/outputs",
    )  # fmt: skip
    return only_folder(folder / "outputs"), done.stdout


@pytest.mark.slow
def test_two_classes_by_one_logit_are_measured_as_by_scikit_learn_with_the_weights(tmp_path: Path) -> None:
    """Train on three replicas whose batches have different sizes."""
    words = ("task.single_logit=true", "train.monitor=val_auc", "train.class_weights=balanced", "strategy=mirrored")
    sizes = ("data.weight=weight", "strategy.cpu_replicas=3", "train.batch_size=16", "train.epochs=3")
    folder, printed = run("breast_cancer", tmp_path, *words, *sizes)
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    columns = read_columns(folder / "predictions.parquet")
    weights = {"sample_weight": columns["weight"]}
    assert metrics["export/max_abs_diff"] < 1e-4
    probabilities, labels = columns["probabilities"].astype(float), columns["label"]
    assert probabilities.shape[1] == 2
    assert metrics["test/accuracy"] == pytest.approx(sk.accuracy_score(labels, columns["predicted"], **weights))
    assert metrics["test/log_loss"] == pytest.approx(sk.log_loss(labels, probabilities, **weights), rel=1e-6)
    f1 = sk.f1_score(labels, columns["predicted"], average="macro", **weights)
    assert metrics["test/macro_f1"] == pytest.approx(f1)
    area = sk.roc_auc_score(labels, probabilities[:, 1], **weights)
    assert metrics["test/roc_auc"] == pytest.approx(area)
    assert metrics["test/auc"] == pytest.approx(area, abs=0.01)
    assert "val_auc" in printed


@pytest.mark.slow
def test_keras_trains_with_a_custom_loss_and_the_exported_file_does_not_need_it(tmp_path: Path) -> None:
    _, printed = run("diabetes", tmp_path, "train=fit", "task.loss._target_=keras.losses.LogCosh", "train.epochs=1")
    assert "val_rmse" in printed


def test_custom_losses_can_be_functions_or_classes() -> None:
    for target, argument in (("keras.losses.Huber", "delta"), ("keras.losses.huber", "delta")):
        words = [f"task.loss._target_={target}", f"task.loss.{argument}=2.0", "train.monitor=val_rmse"]
        check_rules(experiment("data=digits", *words), surroundings=False)
