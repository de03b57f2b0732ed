"""Tasks chosen on the command line, from the table to the export: scikit-learn's own sets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn import metrics as sk

from pipeline.checks.registry import check_rules
from stages.errors import UserError
from stages.evaluation.predictions import read_columns
from tests import commands
from tests.pipeline.experiments import experiment, only_folder


def written(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Writes one of scikit-learn's sets as a table; returns its file and its targets."""
    bunch: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    frame: pd.DataFrame = bunch.frame
    targets = bunch.target.columns.tolist() if isinstance(bunch.target, pd.DataFrame) else [bunch.target.name]
    frame = frame.assign(weight=np.random.default_rng(0).uniform(0.2, 2, len(frame)).round(3))
    frame.to_csv(folder / f"{name}.csv", index=False)
    return folder / f"{name}.csv", targets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wine", ["task=classification"]),
        ("breast_cancer", ["task.single_logit=true", "train.monitor=val_auc", "train.class_weights=balanced"]),
        (
            "linnerud",
            [
                "task.loss._target_=keras.losses.Huber",
                "task.loss.delta=2.0",
                "task.metrics=[{_target_: keras.metrics.MeanAbsolutePercentageError, name: mape}]",
                "train.monitor=val_mape",
                "data.val_fraction=0.2",
                "data.test_fraction=0.3",
            ],
        ),
    ],
)
def test_a_task_is_trained_tested_and_exported(name: str, words: list[str], tmp_path: Path) -> None:
    """On three replicas whose batches are of different sizes; metrics are scikit-learn's, with the weights."""
    file, targets = written(name, tmp_path)
    done = commands.run(
        "data=table",
        f"data.files={file}",
        f"data.target=[{','.join(targets)}]" if targets[1:] else f"data.target={targets[0]}",
        "data.weight=weight",
        *words,
        "strategy=mirrored",
        "strategy.cpu_replicas=3",
        "train.batch_size=16",
        "train.epochs=3",
        "pipeline.inspect=null",
        "evaluate.baseline=false",
        "export=keras",
        "tracking=off",
        f"outputs={tmp_path / 'outputs'}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = only_folder(tmp_path / "outputs")
    summary = json.loads((folder / "summary.json").read_text())
    metrics, columns = summary["metrics"], read_columns(folder / "predictions.parquet")
    weights = {"sample_weight": columns["weight"]}
    assert metrics["export/max_abs_diff"] < 1e-4
    if name == "linnerud":
        true, answers = columns["target"].astype(float), columns["prediction"].astype(float)
        errors = sk.root_mean_squared_error(true, answers, multioutput="raw_values", **weights)
        assert metrics["test/rmse"] == pytest.approx(errors.mean(), rel=1e-6)
        percent = 100 * sk.mean_absolute_percentage_error(true, answers, **weights)
        assert metrics["test/mape"] == pytest.approx(percent, rel=1e-5)
        assert "loss Huber; metrics rmse, mae, r2, mape (lower is better)" in done.stdout
        assert summary["weights"]["monitor"] == "val_mape"
        return
    probabilities, labels = columns["probabilities"].astype(float), columns["label"]
    assert metrics["test/accuracy"] == pytest.approx(sk.accuracy_score(labels, columns["predicted"], **weights))
    assert metrics["test/log_loss"] == pytest.approx(sk.log_loss(labels, probabilities, **weights), rel=1e-6)
    f1 = sk.f1_score(labels, columns["predicted"], average="macro", **weights)
    assert metrics["test/macro_f1"] == pytest.approx(f1)
    if name == "breast_cancer":
        assert probabilities.shape[1] == 2
        area = sk.roc_auc_score(labels, probabilities[:, 1], **weights)
        assert metrics["test/roc_auc"] == pytest.approx(area)
        assert metrics["test/auc"] == pytest.approx(area, abs=0.01)
        assert "val_auc" in done.stdout


@pytest.mark.slow
def test_keras_trains_by_an_own_loss_and_its_file_needs_none(tmp_path: Path) -> None:
    file, [target] = written("diabetes", tmp_path)
    done = commands.run(
        "data=table",
        f"data.files={file}",
        f"data.target={target}",
        "train=fit",
        "task.loss._target_=keras.losses.LogCosh",
        "train.epochs=1",
        "pipeline.inspect=null",
        "evaluate.baseline=false",
        "export=keras",
        "tracking=off",
        f"outputs={tmp_path / 'outputs'}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "val rmse" in done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["train.monitor=val_acc"], "train.monitor=val_acc is not known"),
        (["task.loss.delta=2"], "task.loss={'delta': 2} names no function or class"),
        (["task.metrics=[mape]"], "task.metrics[0]=mape names no function or class"),
        (["task.loss._target_=keras.losses.Hubert"], "task.loss._target_=keras.losses.Hubert cannot be imported"),
        (
            ["task.loss._target_=keras.losses.Huber", "task.loss.deltas=2"],
            "task.loss.deltas: keras.losses.Huber does not",
        ),
        (["task=regression", "task.single_logit=true"], "single_logit"),
    ],
)
def test_wrong_choices_are_refused_before_anything_starts(words: list[str], problem: str) -> None:
    with pytest.raises(UserError) as refused:
        check_rules(experiment("data=digits", *words), surroundings=False)
    assert problem in str(refused.value)


def test_own_losses_of_functions_and_classes_are_composed() -> None:
    for target, argument in (("keras.losses.Huber", "delta"), ("keras.losses.huber", "delta")):
        words = [f"task.loss._target_={target}", f"task.loss.{argument}=2.0", "train.monitor=val_rmse"]
        check_rules(experiment("data=digits", *words), surroundings=False)
