"""The `evaluate` stage: the trained model on the test split."""

import csv
from pathlib import Path

import numpy as np

from stages.distribution.collectives import is_chief
from stages.evaluation.eval_step import Scorer, Scores, Sink
from stages.evaluation.predictions import NAME, facts_of, write_predictions
from stages.plots.charts import plot_confusion
from stages.results import Dataset, Evaluation, Record, Strategy, Trained
from stages.settings.results import EvaluateSettings


def evaluate(
    trained: Trained, dataset: Dataset, strategy: Strategy, settings: EvaluateSettings, folder: Path | None = None
) -> Evaluation:
    """Returns loss, accuracy and confusion matrix, every test example counted once.

    Args:
        folder: the run's; takes `plots/confusion.png`, `test_by_class.csv` and `predictions.parquet`. None: no files.
    """
    scorer = Scorer(strategy, trained.model, dataset.num_classes)
    files: dict[str, Path] = {}

    def score(predictions: Sink | None) -> Scores:
        return scorer.score(dataset.test, settings.batch_size, predictions=predictions)

    if folder is None or not settings.predictions:
        scores = score(None)
    elif is_chief(strategy):
        files[""] = folder / NAME
        scores = write_predictions(folder / NAME, dataset.test, dataset.class_names, score)
    else:  # computes its part of them
        scores = score(lambda probabilities, predicted: None)
    precision, recall, f1 = by_class(scores.confusion)
    metrics = {
        "test/loss": scores.loss,
        "test/accuracy": scores.accuracy,
        "test/macro_precision": float(precision.mean()),
        "test/macro_recall": float(recall.mean()),
        "test/macro_f1": float(f1.mean()),
    }
    if folder is not None:
        files["plots"] = plot_confusion(scores.confusion, dataset.class_names, folder / "plots" / "confusion.png")
        files["report"] = _write_table(scores, dataset.class_names, folder / "test_by_class.csv")
    record = Record(metrics=metrics, files=files, summary=facts_of(dataset.test))
    return Evaluation(scores.loss, scores.accuracy, scores.confusion, record)


def by_class(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns precision, recall and F1 of each class, float64 [classes]; 0 where one has no denominator."""
    correct = np.diag(confusion).astype(np.float64)
    precision = correct / np.maximum(confusion.sum(axis=0), 1)
    recall = correct / np.maximum(confusion.sum(axis=1), 1)
    f1 = 2 * correct / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return precision, recall, f1


def _write_table(scores: Scores, class_names: tuple[str, ...], path: Path) -> Path:
    columns = (class_names, *by_class(scores.confusion), scores.confusion.sum(axis=1))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "precision", "recall", "f1", "examples"])
        writer.writerows(zip(*columns, strict=True))
    return path
