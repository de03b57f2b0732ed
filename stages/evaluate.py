"""The `evaluate` stage: the trained model on the test split."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stages.distribution.collectives import is_chief
from stages.evaluation.baseline import Baseline, baseline_of
from stages.evaluation.eval_step import BATCH, Scorer, Scores, Sink
from stages.evaluation.importance import importance_of, is_quick
from stages.evaluation.intervals import LEAST_FOR_LOSS, LEAST_OF_CLASS, intervals_of
from stages.evaluation.labels import report_labels
from stages.evaluation.metrics import CALIBRATION, metrics_of
from stages.evaluation.numbers import draw_numbers, report_numbers
from stages.evaluation.predictions import (
    NAME,
    Predicted,
    check_other,
    check_same_examples,
    check_same_metric,
    compare_predictions,
    read_columns,
    read_predictions,
    write_predictions,
)
from stages.evaluation.report import Measured, Report, Section, draw_mistakes, draw_reliability
from stages.evaluation.slices import slices_of
from stages.evaluation.test_set import facts_of
from stages.features.drift import Drift, trained_on
from stages.plots.charts import plot_confusion, plot_differences
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Evaluation, Record, Strategy, Trained
from stages.settings.results import EvaluateSettings
from stages.tables import aligned
from stages.tasks.classification import Classification
from stages.tasks.multi_label import MultiLabel
from stages.tasks.regression import Regression

TOLD_ROWS, TOLD_COLUMNS = 10, 6
"""Of a table beside the metrics: what the console shows."""

DRAWN = 30
"""Columns whose importance is drawn, at most."""


def evaluate(
    trained: Trained,
    dataset: Dataset,
    strategy: Strategy,
    settings: EvaluateSettings,
    folder: Path | None = None,
    reporter: Reporter | None = None,
) -> Evaluation:
    """Returns the metrics of the test split, every example counted once.

    All but loss and confusion matrix are computed from the file of predictions. Of several workers only the chief does
    it: the others have no predictions, and record nothing.

    Args:
        folder: the run's; takes `predictions.parquet`, tables and plots. None: no files.
    """
    scorer = Scorer(strategy, trained.model)
    reporter = reporter or Silent()
    batch_size = _batch_size(settings, scorer, len(dataset.test), reporter)

    def score(predictions: Sink) -> Scores:
        return scorer.score(dataset.test, batch_size, predictions=predictions)

    if not is_chief(strategy):  # computes its part of them
        scores = score(lambda rows: None)
        return Evaluation(scores.loss, scores.metrics, scores.tables)
    other = _other(trained, dataset, settings)
    files: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / NAME
        if folder is not None and settings.predictions:
            files[""] = path = folder / NAME
        scores = write_predictions(path, dataset.test, trained.model.task, score)
        report, plots = _explain(path, scores, trained, dataset, settings, folder)
        against = compare_predictions(path, other, settings.confidence) if other is not None else None
        is_own = not isinstance(trained.model.task, type(dataset.task))  # the user's, of which no column is known
        baseline = None if is_own else _baseline(path, dataset, settings)
        sections = [] if is_own else _sections(path, trained, dataset, settings)
    beside = [part for part in (baseline, against) if part is not None]
    drift = Drift(trained_on(dataset.features))
    drift.add(dataset.test.features)
    notes = [*report.notes, *(part.sentence for part in beside), *drift.sentences("the test examples")]
    report = replace(report, notes=notes, sections=sections)
    if folder is not None:
        files["report"] = report.write(folder)
        files["plots"] = plots + _draw_importance(sections, folder)
    _tell(report, reporter)
    metrics = {**report.values, **_ends(report, f"test/{trained.model.task.primary}")}
    summary: dict[str, Any] = {**facts_of(dataset.test)}
    if report.intervals:
        summary["intervals"] = {name: list(ends) for name, ends in report.intervals.items()}
        summary["confidence"] = settings.confidence
    for part in beside:
        metrics |= part.metrics
    if moved := drift.moved():
        summary["drift"] = moved
    if against is not None:
        facts = asdict(against)
        summary["against"] = {**facts, against.metric: facts.pop("difference")}
    record = Record({"batch_size": batch_size}, metrics, files, summary=summary)
    return Evaluation(scores.loss, scores.metrics, scores.tables, record)


def _explain(
    path: Path, scores: Scores, trained: Trained, dataset: Dataset, settings: EvaluateSettings, folder: Path | None
) -> tuple[Measured, list[Path]]:
    """Returns the metrics of the predictions at `path`, and their plots in `folder`, where there is one."""
    task = trained.model.task
    names = task.names
    report: Measured
    plots: list[Path] = []
    if isinstance(task, Classification):
        predicted = read_predictions(path)
        report = of_classes = _report(predicted, dataset, settings)
        if folder is not None:
            plots = _draw(predicted, scores, of_classes.metrics.values, dataset, settings, folder)
    elif isinstance(task, MultiLabel):
        report = report_labels(read_columns(path), names, settings.confidence)
    elif isinstance(task, Regression):
        columns = read_columns(path)
        report = report_numbers(columns, names, settings.confidence)
        plots = draw_numbers(columns, names, folder) if folder is not None else []
    else:  # a task of the user's, which measures itself
        report = Measured(values={}, intervals={}, notes=[f"{len(dataset.test):,} test examples."])
    measured = {f"test/{name}": scores.metrics[name] for name in task.measured}
    return replace(report, values={"test/loss": scores.loss, **measured, **report.values}), plots


def _baseline(path: Path, dataset: Dataset, settings: EvaluateSettings) -> Baseline | None:
    """Returns the baseline of columns, compared with the predictions at `path`; None where there is none."""
    if not settings.baseline or dataset.images is not None:
        return None
    return baseline_of(path, dataset, settings.confidence, settings.calibration_bins)


def _sections(path: Path, trained: Trained, dataset: Dataset, settings: EvaluateSettings) -> list[Section]:
    """Returns what is told beside the metrics: slices of the predictions at `path`, and the importance of columns."""
    sections = []
    if settings.slices:
        sections.append(slices_of(read_columns(path), dataset, settings))
    is_wanted = is_quick(dataset) if settings.importance is None else settings.importance
    if is_wanted and dataset.encoder is not None:
        sections.append(importance_of(trained.model, dataset, settings.confidence))
    return sections


def _tell(report: Measured, reporter: Reporter) -> None:
    """Prints the sentences of a report, and the first lines of its tables."""
    for note in report.notes[1:]:
        reporter.log(note)
    for section in report.sections:
        reporter.log(section.title)
        for line in aligned([row[:TOLD_COLUMNS] for row in section.shown[: TOLD_ROWS + 1]]):
            reporter.log(f"  {line}")


def _draw_importance(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Draws the importance of columns, where it is among the sections; returns the files."""
    path = folder / "plots" / "importance.png"
    for section in sections:
        if section.name == "importance":
            header, *rows = section.rows
            return [plot_differences(rows[:DRAWN], str(header[1]), path)]
    return []


def _batch_size(settings: EvaluateSettings, scorer: Scorer, examples: int, reporter: Reporter) -> int:
    """Returns the examples of a batch, over all replicas; says where memory or the split limits them."""
    if settings.batch_size is not None and settings.batch_size > examples:
        reporter.warn(f"evaluate.batch_size={settings.batch_size} is more than the {examples:,} test examples")
    if settings.batch_size is None and scorer.most < BATCH:
        reporter.log(f"evaluation in batches of {scorer.most}, for memory (evaluate.batch_size)")
    return settings.batch_size or min(BATCH, scorer.most)


def _other(trained: Trained, dataset: Dataset, settings: EvaluateSettings) -> Path | None:
    """Returns the folder of the run to compare with, whose predictions are of these classes, examples and metric."""
    if settings.against is None:
        return None
    folder = Path(settings.against)
    check_same_examples(check_other(folder, settings.against), settings.against, dataset.test, dataset.task.names)
    check_same_metric(folder, settings.against, trained.model.task.primary)
    return folder


def _ends(report: Measured, first: str) -> dict[str, float]:
    """Returns the interval of the first metric as metrics; those of all others would flood MLflow's charts."""
    ends = report.intervals.get(first)
    return {} if ends is None else dict(zip((f"{first}_low", f"{first}_high"), ends, strict=True))


def _report(predicted: Predicted, dataset: Dataset, settings: EvaluateSettings) -> Report:
    metrics = metrics_of(predicted, settings.calibration_bins)
    values = {f"test/{name}": value for name, value in metrics.values.items()}
    notes = [
        f"{len(predicted):,} test examples. {_explained(settings)}",
        *_missing(predicted, metrics.support, dataset),
    ]
    found = intervals_of(predicted, settings.confidence)
    intervals = {f"test/{name}": ends for name, ends in found.items()}
    return Report(values=values, metrics=metrics, class_names=dataset.task.names, intervals=intervals, notes=notes)


def _explained(settings: EvaluateSettings) -> str:
    """Return what the intervals and the calibration error of a report are."""
    return (
        f"low, high: {100 * settings.confidence:g} % interval over the test examples; it does not show how results "
        f"vary with the seed. Without one: log loss of fewer than {LEAST_FOR_LOSS} examples, means over classes of "
        f"which one has fewer than {LEAST_OF_CLASS}, and what no example changes, such as a perfect ranking. test/ece: "
        f"expected calibration error of the predicted class, {settings.calibration_bins} bins of equal width; few "
        "examples overstate it, so it has none either."
    )


def _missing(predicted: Predicted, support: Any, dataset: Dataset) -> list[str]:
    """Returns sentences on metrics that are not defined."""
    sentences = []
    absent = [name for name, examples in zip(dataset.task.names, support, strict=True) if not examples]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        sentences.append(
            f"the test split has no example of {len(absent)} of {dataset.task.outputs} classes ({', '.join(absent[:5])}"
            f"{more}): ROC-AUC and average precision leave them out"
        )
    if not predicted.is_finite:
        sentences.append(
            "the model's probabilities are not all numbers: no log loss, calibration, top-5 accuracy, ROC-AUC or "
            "average precision"
        )
    return sentences


def _draw(
    predicted: Predicted,
    scores: Scores,
    values: Mapping[str, float],
    dataset: Dataset,
    settings: EvaluateSettings,
    folder: Path,
) -> list[Path]:
    confusion = np.rint(scores.tables["confusion"]).astype(np.int64)
    plots = [plot_confusion(confusion, dataset.task.names, folder / "plots" / "confusion.png")]
    if CALIBRATION in values:
        plots.append(draw_reliability(predicted, settings.calibration_bins, values[CALIBRATION], folder))
    mistakes = draw_mistakes(predicted, dataset, settings.mistakes, folder)
    return [*plots, mistakes] if mistakes is not None else plots
