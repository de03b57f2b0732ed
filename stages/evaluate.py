"""The `evaluate` stage: the trained model on the test split."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stages.collectives import is_chief
from stages.declared import declare
from stages.evaluation.against import check_comparable, compare_with
from stages.evaluation.baseline import Baseline, baseline_of, trivial_of
from stages.evaluation.by_column import check_settings, importance_of, is_quick, slices_of
from stages.evaluation.eval_step import BATCH, Scorer, predictions_of
from stages.evaluation.predictions import NAME, check_finite, check_inputs, columns_of, write_predictions
from stages.evaluation.report import write_report
from stages.evaluation.test_set import facts_of
from stages.features.drift import Drift, trained_on
from stages.metrics.estimates import Columns
from stages.metrics.intervals import NO_INTERVAL
from stages.metrics.report import Measured, Section
from stages.reporter import Reporter
from stages.results import Dataset, Evaluation, Model, Record, Strategy, Trained
from stages.settings.results import EvaluateSettings
from stages.tables import aligned

TOLD_ROWS, TOLD_COLUMNS = 10, 6
"""Of a table beside the metrics: what the console shows."""


def evaluate(
    trained: Trained,
    dataset: Dataset,
    strategy: Strategy,
    settings: EvaluateSettings,
    folder: Path | None = None,
    reporter: Reporter | None = None,
) -> Evaluation:
    """Return the metrics of the test split, every example counted once.

    All but the loss are computed from the predictions. Of several workers only the chief does it: the others
    have no predictions, and record nothing.

    Args:
        folder: the run's; takes `predictions.parquet`, tables and plots. None: no files.
    """
    model, reporter = trained.model, reporter or Reporter()
    task, test = model.task, dataset.test
    check_settings(task, dataset, settings)
    scorer = Scorer(strategy, model)
    batch_size = settings.batch_size or min(BATCH, scorer.most)
    scores = scorer.score(test, batch_size, predicts=True)
    assert scores.predictions is not None
    check_finite(scores.predictions, test, task, dataset.name, model.policy)  # in every worker, so that all end
    check_inputs(test, dataset.name, model.policy)
    if not is_chief(strategy):  # has computed its part of them
        return Evaluation(scores.loss, scores.metrics)
    other = None if settings.against is None else check_comparable(settings.against, test, task)
    files: dict[str, Any] = {}
    if folder is not None and settings.predictions:
        files[""] = folder / NAME
        write_predictions(folder / NAME, test, task, scores.predictions)
    columns = columns_of(test, task, scores.predictions)
    given = (task.comparable, columns, task.names, settings.confidence, settings.calibration_bins)
    report = task.view.report(*given) if task.comparable else Measured()
    baseline, sections = _beside(columns, model, dataset, settings)
    against = None if other is None else compare_with(columns, task, other, settings.confidence)
    trivial = trivial_of(columns, replace(dataset, task=task), settings.confidence) if task.comparable else None
    beside = [part for part in (trivial, baseline, against) if part is not None]
    drift = Drift(trained_on(dataset.features))
    drift.add(test.features)
    measured = {"loss": scores.loss, **{name: scores.metrics[name] for name in task.measured}, **report.values}
    values = {name: value for name, value in measured.items() if math.isfinite(value)}
    undefined = [
        f"{name} is {value} on the test split and is not reported"
        for name, value in measured.items()
        if name not in values
    ]
    about = (
        f"{len(test):,} test examples. low and high are the ends of the {100 * settings.confidence:g}% confidence "
        "interval (CI) for other test examples of the same kind; it does not include the variation between seeds."
    )
    warned = [*report.notes, *undefined, *drift.sentences("the test examples")]
    verdicts = [part.sentence for part in beside]
    report = replace(
        report,
        values={f"test/{name}": value for name, value in values.items()},
        intervals={f"test/{name}": ends for name, ends in report.intervals.items()},
        notes=[about, *verdicts, *warned],
        sections=[*report.sections, *sections],
    )
    if folder is not None:
        files["report"] = write_report(report, folder)
        predict = partial(predictions_of, model.on_one_device(), test)
        files["plots"] = task.view.draw(columns, dataset, settings, folder, predict) if task.comparable else []
    first = f"test/{task.primary}"
    _tell(replace(report, notes=warned), first in report.intervals, reporter)
    # Only its interval is recorded: those of all metrics would flood MLflow's charts.
    ends = zip((f"{first}_low", f"{first}_high"), report.intervals.get(first, ()), strict=False)
    metrics = {**report.values, **dict(ends)}
    summary: dict[str, Any] = {**facts_of(test)}
    if report.intervals:
        summary["intervals"] = {name: list(ends) for name, ends in report.intervals.items()}
        summary["confidence"] = settings.confidence
    for part in beside:
        metrics |= part.metrics
    if moved := drift.moved():
        summary["drift"] = moved
    if verdicts:
        summary["verdicts"] = verdicts
    if against is not None:
        summary["against"] = against.summary
    record = Record({"batch_size": batch_size}, metrics, files, summary=summary)
    return Evaluation(scores.loss, scores.metrics, record)


def _beside(
    columns: Columns, model: Model, dataset: Dataset, settings: EvaluateSettings
) -> tuple[Baseline | None, list[Section]]:
    """Return what is reported in addition to the metrics: the baseline, slices, and the importance of columns."""
    if not model.task.comparable:
        return None, []
    baseline, tested = None, replace(dataset, task=model.task)
    sections: list[Section] = []
    if settings.boosting and dataset.images is None:
        baseline = baseline_of(columns, tested, settings.confidence, settings.calibration_bins, settings.boosting)
    if settings.slices:
        sections.append(slices_of(columns, tested, settings))
    is_wanted = is_quick(dataset) if settings.importance is None else settings.importance
    if is_wanted and dataset.images is None:
        sections.append(importance_of(model, dataset, settings.confidence))
    return baseline, sections


def _tell(report: Measured, has_interval: bool, reporter: Reporter) -> None:
    """Print the notes of a report, and the first lines of its tables. The verdicts are in the summary of the run.

    Args:
        has_interval: whether the first metric, the one on the console, has an interval. If so, the sentence on metrics
            without one is left to the report.
    """
    for note in report.notes:
        if not (has_interval and note.startswith(NO_INTERVAL)):
            reporter.log(note)
    for section in report.sections:
        reporter.log(section.title)
        for line in aligned([row[:TOLD_COLUMNS] for row in section.shown[: TOLD_ROWS + 1]]):
            reporter.log(f"  {line}")
        if (left := len(section.rows) - 1 - TOLD_ROWS) > 0:
            reporter.log(f"  … and {left} more in test_{section.name}.csv")


def check(settings: EvaluateSettings, dataset: Dataset, model: Model | None = None) -> None:
    """Refuse columns, and another run's examples or metric, that the evaluation cannot use, before training.

    Raises:
        UserError: If there is something that cannot work.
    """
    check_settings(dataset.task if model is None else model.task, dataset, settings)
    if model is not None and settings.against is not None:
        check_comparable(settings.against, dataset.test, model.task)


declare(evaluate, check=check)
