"""The `evaluate` stage: the trained model on the test split."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.data.columns import evenly_spread
from stages.distribution.collectives import is_chief
from stages.evaluation.baseline import Baseline, baseline_of
from stages.evaluation.by_task import report_of
from stages.evaluation.estimates import Columns
from stages.evaluation.eval_step import BATCH, Scorer, Scores
from stages.evaluation.importance import importance_of, is_quick
from stages.evaluation.predictions import (
    NAME,
    Predicted,
    check_other,
    check_same_examples,
    check_same_metric,
    compare_predictions,
    read_columns,
    write_predictions,
)
from stages.evaluation.report import Measured, Section, draw_mistakes, draw_reliability
from stages.evaluation.scored import ROWS, columns_of, is_told_by_columns, scoring
from stages.evaluation.slices import slices_of
from stages.evaluation.test_set import facts_of
from stages.features.drift import Drift, trained_on
from stages.plots.charts import plot_confusion, plot_differences, plot_numbers
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Evaluation, Model, Record, Strategy, Trained
from stages.settings.results import EvaluateSettings
from stages.tables import aligned
from stages.tasks.classification import Classification
from stages.tasks.regression import Regression

TOLD_ROWS, TOLD_COLUMNS = 10, 6
"""Of a table beside the metrics: what the console shows."""

DRAWN, DRAWN_TARGETS = 30, 4
"""Columns whose importance is drawn, and targets whose predictions are, at most."""


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
    scores = scorer.score(dataset.test, batch_size, predicts=True)
    assert scores.predictions is not None
    if not is_chief(strategy):  # has computed its part of them
        return Evaluation(scores.loss, scores.metrics, scores.tables)
    other = _other(trained, dataset, settings)
    files: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / NAME
        if folder is not None and settings.predictions:
            files[""] = path = folder / NAME
        write_predictions(path, dataset.test, trained.model.task, scores.predictions)
        report, plots = _explain(path, scores, trained, dataset, settings, folder)
        against = compare_predictions(path, other, settings.confidence) if other is not None else None
        baseline, sections = _beside(path, trained.model, dataset, settings)
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
    report = Measured(values={}, intervals={}, notes=[f"{len(dataset.test):,} test examples."])
    plots: list[Path] = []
    if task.kind != "auto":  # one of the user's alone measures itself
        columns = read_columns(path)
        report = report_of(task, columns, settings.confidence, settings.calibration_bins)
    if isinstance(task, Classification) and folder is not None:
        plots = _draw(Predicted.of(columns), scores, report.values.get("test/ece"), dataset, settings, folder)
    elif isinstance(task, Regression) and folder is not None:
        targets, answers = columns[task.target], columns[task.answer]
        drawn = enumerate(task.names[:DRAWN_TARGETS])
        of_each = [(name, targets[:, place], answers[:, place]) for place, name in drawn]
        plots = [plot_numbers(of_each, folder / "plots" / "predicted.png")]
    measured = {f"test/{name}": scores.metrics[name] for name in task.measured}
    return replace(report, values={"test/loss": scores.loss, **measured, **report.values}), plots


def _beside(
    path: Path, model: Model, dataset: Dataset, settings: EvaluateSettings
) -> tuple[Baseline | None, list[Section]]:
    """Returns what is told beside the metrics: the baseline of columns, slices, and the importance of columns."""
    baseline, sections = None, []
    has_baseline = settings.baseline and dataset.images is None
    if has_baseline or settings.slices:
        task, test = model.task, dataset.test
        if is_told_by_columns(task):
            predicted: Columns = read_columns(path)
        else:
            test = test.take(evenly_spread(len(test), ROWS))
            predicted = scoring(model, dataset, test)(columns_of(test))
        tested = replace(dataset, task=task, test=test)
    if has_baseline:
        baseline = baseline_of(predicted, tested, settings.confidence, settings.calibration_bins)
    if settings.slices:
        sections.append(slices_of(predicted, tested, settings))
    is_wanted = is_quick(dataset) if settings.importance is None else settings.importance
    if is_wanted and dataset.encoder is not None:
        sections.append(importance_of(model, dataset, settings.confidence))
    return baseline, sections


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
    check_same_metric(folder, settings.against, trained.model.task)
    return folder


def _ends(report: Measured, first: str) -> dict[str, float]:
    """Returns the interval of the first metric as metrics; those of all others would flood MLflow's charts."""
    ends = report.intervals.get(first)
    return {} if ends is None else dict(zip((f"{first}_low", f"{first}_high"), ends, strict=True))


def _draw(
    predicted: Predicted,
    scores: Scores,
    calibration: float | None,
    dataset: Dataset,
    settings: EvaluateSettings,
    folder: Path,
) -> list[Path]:
    plots = [plot_confusion(scores.tables["confusion"], dataset.task.names, folder / "plots" / "confusion.png")]
    if calibration is not None:
        plots.append(draw_reliability(predicted, settings.calibration_bins, calibration, folder))
    mistakes = draw_mistakes(predicted, dataset, settings.mistakes, folder)
    return [*plots, mistakes] if mistakes is not None else plots
