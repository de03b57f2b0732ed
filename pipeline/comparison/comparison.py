"""Compares runs: rows over seeds, the best on validation, each row against a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.comparison.compared_run import ComparedRun
from pipeline.comparison.rows import Row, best_row, chosen_metric, rows_of
from stages.errors import UserError
from stages.evaluation.paired_tests import AccuracyDifference, accuracy_difference
from stages.evaluation.test_set import EXAMPLES, PIXELS, is_same_test_set


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    title: of all of them. runs: in their order, whatever became of them; rows: of those that have finished.
    names: of the settings that differ, without the seed. baseline: what speed and accuracy are compared with.
    chosen_on: the validation metric on which `best` was chosen; None: there is none, and no best row.
    differences: in test accuracy from the baseline, by the number of the row; warnings: a sentence each.
    own_columns: metrics that the user wants to see.
    """

    title: str
    runs: tuple[ComparedRun, ...]
    rows: tuple[Row, ...]
    names: tuple[str, ...]
    baseline: Row | None
    best: Row | None
    chosen_on: str | None
    differences: Mapping[int, AccuracyDifference]
    warnings: tuple[str, ...] = ()
    own_columns: tuple[str, ...] = ()

    @property
    def unfinished(self) -> list[ComparedRun]:
        return [run for run in self.runs if not run.has_finished]

    def speed_up(self, row: Row) -> float | None:
        """Returns how many times as fast as the baseline a row trains."""
        base = self.baseline.speed if self.baseline is not None else None
        return row.speed / base if row.speed is not None and base else None

    def efficiency(self, row: Row) -> float | None:
        """Returns the speed-up for each replica that the row has for one of the baseline's; 1: no replica is wasted."""
        speed_up = self.speed_up(row)
        return speed_up * self.baseline.replicas / row.replicas if speed_up is not None and self.baseline else None


def compare_runs(
    title: str,
    runs: Sequence[ComparedRun],
    baseline: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
) -> Comparison:
    """Compares runs.

    Args:
        baseline: settings of the row that the others are compared with; None: the first row.
        columns: metrics that the tables are to have, instead of those that they have by themselves.

    Raises:
        UserError: where no row, or more than one, has the settings of the baseline, or no run has a metric.
    """
    known = sorted({name for run in runs for name in run.metrics})
    for name in columns:
        if name not in known:
            raise UserError(f"no run has a metric {name}", ", ".join(known) or "runs with metrics")
    names, rows = rows_of(runs)
    base = rows[0] if rows and baseline is None else None
    if baseline is not None:
        base = _named(rows, names, baseline)
    real = [row for row in rows if not row.is_debug]
    chosen_on = chosen_metric(real)
    differences, warnings = _differences(rows, base)
    best = best_row(real, chosen_on)
    return Comparison(
        title, tuple(runs), rows, names, base, best, chosen_on, differences, tuple(warnings), tuple(columns)
    )


def _named(rows: Sequence[Row], names: Sequence[str], baseline: Mapping[str, str]) -> Row:
    matching = [row for row in rows if all(row.runs[0].setting(name) == value for name, value in baseline.items())]
    text = ",".join(f"{name}={value}" for name, value in baseline.items())
    shown = "; ".join(row.label.replace(" ", ",") for row in rows[:5]) + ("; …" if len(rows) > 5 else "")
    if not matching:
        raise UserError(f"--baseline {text}: no finished run has these settings", shown or "finished runs")
    if len(matching) > 1:
        raise UserError(f"--baseline {text}: {len(matching)} combinations have these settings", shown)
    return matching[0]


def _differences(rows: Sequence[Row], base: Row | None) -> tuple[dict[int, AccuracyDifference], list[str]]:
    """Returns the difference of each row from the baseline, and what forbids one."""
    tested = [run for row in rows for run in row.runs if run.test_set is not None]
    warnings = []
    if any(not _is_same_test_set(run, tested[0]) for run in tested):
        warnings.append(
            "the runs were tested on different test sets: accuracies are not of the same examples, and those of other "
            "examples than the baseline's have no interval and no p"
        )
    if base is None or len(rows) < 2:
        return {}, warnings
    correct = _correct(base)
    if correct is None:
        if any("test/accuracy" in row.metrics for row in rows):
            warnings.append("the baseline has no predictions of test examples: no interval and no p")
        return {}, warnings
    differences = {}
    without = []
    for number, row in enumerate(rows):
        if row is base or not _is_same_test_set(row.runs[0], base.runs[0]):
            continue
        other = _correct(row)
        if other is None or other.shape[1] != correct.shape[1]:
            without.append(row.label)
            continue
        first, second, paired = _paired(base, correct, row, other)
        differences[number] = accuracy_difference(first, second, paired)
    if without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        warnings.append(f"no interval and no p, as predictions are missing: {', '.join(without[:3])}{more}")
    return differences, warnings


def _correct(row: Row) -> np.ndarray | None:
    """Returns which test examples each run classifies correctly, bool [runs, n]; None where one has no predictions."""
    answers = [run.correct() if _is_same_test_set(run, row.runs[0]) else None for run in row.runs]
    arrays = [array for array in answers if array is not None]
    if len(arrays) != len(row.runs) or len({len(array) for array in arrays}) != 1 or not len(arrays[0]):
        return None
    return np.stack(arrays)


def _is_same_test_set(run: ComparedRun, other: ComparedRun) -> bool:
    """Returns whether both were tested on the same examples, of the same pixels where their images are of one size."""
    if run.test_set is None or other.test_set is None:
        return False
    facts, others = (dict(zip((EXAMPLES, PIXELS), digests, strict=True)) for digests in (run.test_set, other.test_set))
    return is_same_test_set(facts, others)


def _paired(base: Row, correct: np.ndarray, row: Row, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Returns the runs of both rows in the order of the seeds that both have; all of them where those are too few."""
    places = {run.seed: place for place, run in enumerate(base.runs)}
    pairs = [(places[run.seed], place) for place, run in enumerate(row.runs) if run.seed in places]
    unique = base.has_seeds_of_their_own and row.has_seeds_of_their_own
    if unique and len(pairs) == len(base.runs) == len(row.runs):
        return correct[[first for first, _ in pairs]], other[[second for _, second in pairs]], True
    return correct, other, False
