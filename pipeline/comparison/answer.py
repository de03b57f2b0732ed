"""The answer in sentences: which setting won, by how much, and which differences may be chance."""

from pipeline.comparison.columns import interval_text, metric_column
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.rows import Row, are_validated_alike, is_lower_better
from stages.evaluation.paired_tests import points


def choice(comparison: Comparison) -> str:
    """Returns which row is best, and on what it was chosen."""
    best = comparison.best
    metric = comparison.chosen_on
    if not comparison.rows:
        return "no run has finished"
    if all(row.is_debug for row in comparison.rows):
        return f"no best setting: debug runs only check that a setting works, and {len(comparison.rows)} did"
    if len(comparison.rows) == 1:
        return f"one setting: nothing to choose between ({_count(len(comparison.rows[0].runs), comparison.rows[0])})"
    if not are_validated_alike([row for row in comparison.rows if not row.is_debug]):
        return "no best setting: the runs were validated on different examples, and none is chosen on test"
    if metric is None:
        return "no best setting: the runs have no validation metric in common, and none is chosen on test"
    if best is None:
        return f"no best setting: {metric} is not a number in any"
    value = metric_column(metric).text(best)
    unit = " %" if metric.endswith("accuracy") else ""
    better = "lower" if is_lower_better(metric) else "higher"
    return f"best: {best.label}, chosen on {metric} ({value}{unit}; {better} is better), never on test"


def sentences(comparison: Comparison) -> list[str]:
    """Returns what each row changes against the baseline, that of the best row first."""
    base = comparison.baseline
    if base is None or base.is_debug:
        return []
    numbered = [(number, row) for number, row in enumerate(comparison.rows) if row is not base and not row.is_debug]
    numbered.sort(key=lambda entry: entry[1] is not comparison.best)
    return [sentence for number, row in numbered if (sentence := _sentence(comparison, number, row))]


def _sentence(comparison: Comparison, number: int, row: Row) -> str:
    difference = comparison.differences.get(number)
    base = comparison.baseline
    before = base.mean("test/accuracy") if base is not None else None
    parts = []
    if difference is not None and difference.low == difference.difference == difference.high == 0:
        parts.append(f"is correct on exactly the same test examples (n = {_count(difference.seeds, row)})")
    elif difference is not None:
        interval = f"95 %: {interval_text(difference)}, n = {_count(difference.seeds, row)}"
        what = f"changes test accuracy by {points(difference.difference)} points ({interval})"
        parts.append(what if difference.excludes_zero else f"{what}, not distinguishable from zero by these examples,")
    elif (mean := row.mean("test/accuracy")) is not None and before is not None:
        parts.append(f"has a test accuracy {points(mean - before)} points from the baseline's, with no interval,")
    speed_up = comparison.speed_up(row)
    if speed_up is not None:
        parts.append(f"is {speed_up:.2g}× as fast on {row.where}")
    return f"{_subject(comparison, row)} " + " and ".join(parts).rstrip(",") if parts else ""


def _subject(comparison: Comparison, row: Row) -> str:
    """Returns what tells a row from the baseline."""
    base = comparison.baseline
    before = base.settings if base is not None else {}
    changed = {name: row.settings.get(name, "default") for name in comparison.names}
    changed = {name: value for name, value in changed.items() if value != before.get(name, "default")}
    return " ".join(f"{name}={value}" for name, value in changed.items())


def _count(count: int, row: Row) -> str:
    what = "seed" if row.has_seeds_of_their_own else "run"
    return f"{count} {what}{'s' * (count != 1)}"
