"""Compares runs: rows over seeds, the one to take, each row against a baseline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.comparison.choice import Choice, SpeedUp, choose, speed_up, speed_variances
from pipeline.comparison.compared_run import ComparedRun
from pipeline.comparison.rows import Row, pair, rows_of
from stages.errors import UserError
from stages.evaluation.paired_tests import AccuracyDifference, accuracy_difference, pooled_between_seeds
from stages.evaluation.test_set import EXAMPLES


@dataclass(frozen=True)
class SearchResult:
    """Result of a search by its own goals, which the comparison of its trials repeats."""

    answer: str
    metrics: tuple[str, ...]  # of the goals
    best: tuple[str, ...]  # names of the best trials' folders
    commands: tuple[str, ...]  # that run their settings, each once


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    title: of all of them. runs: in their order, whatever became of them; rows: of those that have finished.
    names: of the settings that differ, without the seed. baseline: what speed and accuracy are compared with.
    choice: the row to take, and why. differences: of rows from the baseline in test accuracy; left_out: runs of
    both rows that these do not count. speeds: of training, against the baseline's.
    warnings: a sentence each. own_columns: metrics that the user wants to see. search: whose trials they are.
    """

    title: str
    runs: tuple[ComparedRun, ...]
    rows: tuple[Row, ...]
    names: tuple[str, ...]
    baseline: Row | None
    choice: Choice
    differences: Mapping[Row, AccuracyDifference]
    left_out: Mapping[Row, int]
    speeds: Mapping[Row, SpeedUp]
    warnings: tuple[str, ...] = ()
    own_columns: tuple[str, ...] = ()
    search: SearchResult | None = None

    @property
    def unfinished(self) -> list[ComparedRun]:
        return [run for run in self.runs if not run.has_finished and run.pruned_after is None]

    @property
    def best(self) -> Row | None:
        """The row to take."""
        return self.choice.row


def compare_runs(
    title: str,
    runs: Sequence[ComparedRun],
    baseline: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
    search: SearchResult | None = None,
) -> Comparison:
    """Compares runs.

    Args:
        baseline: settings of the row that the others are compared with; None: the first row, of a search none.
        columns: metrics that the tables are to have, instead of those that they have by themselves.
        search: whose trials the runs are; it has chosen the best already.

    Raises:
        UserError: where no row, or more than one, has the settings of the baseline, or no run has a metric.
    """
    known = sorted({name for run in runs for name in run.metrics})
    for name in columns:
        if name not in known:
            raise UserError(f"no run has a metric {name}", ", ".join(known) or "runs with metrics")
    names, rows = rows_of(runs)
    base = rows[0] if rows and baseline is None and search is None else None
    if baseline is not None:
        base = _named(rows, names, baseline)
    differences, left_out, warnings = _differences(rows, base)
    variances = speed_variances(rows)
    speeds = {row: found for row in rows if base and (found := speed_up(row, base, variances))}
    return Comparison(
        title,
        tuple(runs),
        rows,
        names,
        base,
        _chosen(rows, search) if search else choose([row for row in rows if not row.is_debug], base),
        differences,
        left_out,
        speeds,
        tuple(warnings),
        tuple(columns),
        search,
    )


def _chosen(rows: Sequence[Row], search: SearchResult) -> Choice:
    """Return the choice that a search has made; no row is the best of several goals."""
    found = [row for row in rows if any(run.folder.name in search.best for run in row.runs)]
    best = found[0] if len(search.best) == 1 and found else None
    return Choice(search.metrics[0], best, row=best)


def _named(rows: Sequence[Row], names: Sequence[str], baseline: Mapping[str, str]) -> Row:
    matching = [row for row in rows if all(row.runs[0].setting(name) == value for name, value in baseline.items())]
    text = ",".join(f"{name}={value}" for name, value in baseline.items())
    shown = "; ".join(row.label.replace(" ", ",") for row in rows[:5]) + ("; …" if len(rows) > 5 else "")
    if not matching:
        raise UserError(f"--baseline {text}: no finished run has these settings", shown or "finished runs")
    if len(matching) > 1:
        raise UserError(f"--baseline {text}: {len(matching)} combinations have these settings", shown)
    return matching[0]


def _differences(
    rows: Sequence[Row], base: Row | None
) -> tuple[dict[Row, AccuracyDifference], dict[Row, int], list[str]]:
    """Return each row's difference from the baseline, the runs that it does not count, and what forbids one."""
    tested = [run for row in rows for run in row.runs if EXAMPLES in run.summary.facts]
    warnings = []
    if not all(run.is_tested_as(tested[0]) for run in tested):
        warnings.append(
            "the runs were tested on different test sets: accuracies are not of the same examples, and those of other "
            "examples than the baseline's have no interval and no p"
        )
    if base is None or len(rows) < 2:
        return {}, {}, warnings
    correct = _correct(rows, base)
    if not base.by_seed(correct):
        if any("test/accuracy" in row.metrics for row in rows):
            warnings.append("the baseline has no predictions of test examples: no interval and no p")
        return {}, {}, warnings
    pooled = pooled_between_seeds([np.stack([*found.values()]) for row in rows if (found := row.by_seed(correct))])
    differences, left_out, without = {}, {}, []
    for row in rows:
        if row is base or not any(run.is_tested_as(base.runs[0]) for run in row.runs):
            continue
        if not row.by_seed(correct):
            without.append(row.label)
            continue
        first, second, is_paired, left_out[row] = pair(base, row, correct)
        differences[row] = accuracy_difference(np.stack(first), np.stack(second), is_paired, pooled)
    if without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        warnings.append(f"no interval and no p, as predictions are missing: {', '.join(without[:3])}{more}")
    return differences, left_out, warnings


def _correct(rows: Sequence[Row], base: Row) -> Callable[[ComparedRun], np.ndarray | None]:
    """Return what knows of a run which test examples it classifies correctly, bool [n].

    None of a run without predictions, or with those of other examples than the baseline's.
    """
    answers: dict[int, np.ndarray] = {}
    for run in [*base.runs, *(run for row in rows if row is not base for run in row.runs)]:
        if run.is_tested_as(base.runs[0]) and (correct := run.correct()) is not None and len(correct):
            answers[run.number] = correct
    length = len(next(iter(answers.values()), ()))
    return lambda run: found if (found := answers.get(run.number)) is not None and len(found) == length else None
