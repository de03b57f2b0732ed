"""The answer in sentences: which setting to take, by how much others differ, and which differences may be chance.

The terminal, Markdown, the page and MLflow show the same sentences.
"""

import shlex
from collections.abc import Sequence

from pipeline.comparison.choice import are_validated_alike
from pipeline.comparison.compared_run import ComparedRun
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import metric_column
from pipeline.comparison.rows import Row, is_lower_better
from pipeline.config.keys import split_override
from pipeline.paths import CONF
from stages.evaluation.paired_tests import AccuracyDifference, points

MOST_NAMED = 4
"""Rows that one sentence names."""

OF_THE_COMMAND = ("sweep", "resume", "max_jobs", "dry_run", "trust")
"""Settings of the command that ran a row, and not of its experiment."""


def choice(comparison: Comparison) -> str:
    """Return which row to take, and on what it was chosen."""
    rows = comparison.rows
    chosen = comparison.choice
    if comparison.search is not None:
        return comparison.search.answer
    if not rows:
        return "no run has finished"
    if all(row.is_debug for row in rows):
        return f"no best setting: debug runs only check that a setting works, and {len(rows)} did"
    if len(rows) == 1:
        return f"one setting: nothing to choose between ({_count(len(rows[0].runs), rows[0])})"
    if not are_validated_alike([row for row in rows if not row.is_debug]):
        return "no best setting: the runs were validated on different examples, and none is chosen on test"
    if chosen.metric is None:
        return "no best setting: the runs have no validation metric in common, and none is chosen on test"
    if chosen.best is None or chosen.row is None:
        return f"no best setting: {chosen.metric} is not a number in any"
    if not chosen.tied:
        doubt = "" if chosen.noise else "; of one run each, so that its lead may be chance: seed=1,2,3 would tell"
        return f"best: {chosen.best.label}, chosen on {_on(comparison, chosen.best)}, never on test{doubt}"
    tied = [f"{row.label} ({_value(comparison, row)})" for row in chosen.tied]
    by = "as their seeds vary" if chosen.noise == "runs" else "by one run each and so few validation examples"
    return (
        f"no single best: {chosen.best.label} leads on {_on(comparison, chosen.best)}, and cannot be told from "
        f"{_listed(tied)} {by}. Take {chosen.row.label}: of these {chosen.reason}"
    )


def run_it(comparison: Comparison) -> str | None:
    """Return the command that runs the row to take, a line each for several; None where there is none."""
    row = comparison.choice.row
    if comparison.search is not None:
        return "\n".join(comparison.search.commands) or None
    if row is None:
        return None
    run = row.runs[0]
    left_out = (*OF_THE_COMMAND, *(["seed"] if len(row.runs) > 1 else []))
    words = [
        _typed(line) for line in run.summary.overrides if split_override(line)[0].partition(".")[0] not in left_out
    ]
    if any(split_override(line)[0] == "experiment" for line in words):
        words.append("sweep=none")  # the experiment's file may say itself what varies
    own = any(
        option and (CONF / group).is_dir() and not (CONF / group / f"{option}.yaml").is_file()
        for group, option in run.summary.choices.items()
    )
    return f"python -m pipeline {'--config-dir … ' if own else ''}{shlex.join(words)}".rstrip()


def pruned_line(comparison: Comparison) -> str | None:
    """Return which trials were pruned, and when: `pruned: trial 3 after epoch 1, trials 4 and 7 after epoch 2`."""
    by_epoch: dict[int, list[str]] = {}
    for run in comparison.runs:
        if run.pruned_after is not None:
            by_epoch.setdefault(run.pruned_after, []).append(str(run.number))
    parts = [
        f"trial{'s' * (len(numbers) > 1)} {_joined(numbers)} after epoch {epoch}"
        for epoch, numbers in sorted(by_epoch.items())
    ]
    return f"pruned: {', '.join(parts)}" if parts else None


def _typed(line: str) -> str:
    """Return an override as Hydra reads it, its value quoted where that has signs of Hydra's grammar."""
    name, equals, value = line.partition("=")
    is_whole = value[:1] + value[-1:] in ("[]", "{}", "''", '""') and len(value) > 1
    if is_whole or "${" in value or not set(value) & set("()[]{},'\"\\"):
        return line
    escaped = value.replace("'", "\\'")
    return f"{name}{equals}'{escaped}'"


def sentences(comparison: Comparison) -> list[str]:
    """Return what each row changes against the baseline, that of the row to take first."""
    base = comparison.baseline
    if base is None or base.is_debug:
        return []
    rows = [row for row in comparison.rows if row is not base and not row.is_debug]
    rows.sort(key=lambda row: row is not comparison.best)
    return [sentence for row in rows if (sentence := _sentence(comparison, base, row))]


def unfinished_line(run: ComparedRun) -> str:
    """Return what became of a run that has not finished, and why."""
    status = run.status if run.pruned_after is None else f"PRUNED after epoch {run.pruned_after}"
    return f"job {run.number} {status}: {run.reason or run.folder.name}"


def _sentence(comparison: Comparison, base: Row, row: Row) -> str:
    difference = comparison.differences.get(row)
    parts = []
    if difference is not None:
        parts.append(_accuracy(difference, comparison.left_out[row]))
    elif (mean := row.mean("test/accuracy")) is not None and (before := base.mean("test/accuracy")) is not None:
        parts.append(f"has a test accuracy {points(mean - before)} points from the baseline's, with no interval,")
    if speed := _speed(comparison, row):
        parts.append(speed)
    return f"{_subject(comparison, base, row)} " + " and ".join(parts).rstrip(",") if parts else ""


def _accuracy(difference: AccuracyDifference, left_out: int) -> str:
    count = f"n = {difference.seeds} seed{'s' * (difference.seeds != 1)}"
    if left_out:
        count += f", {left_out} run{'s' * (left_out != 1)} without a partner left out"
    if not difference.of_settings:
        count += ": two trained models, not two settings"
    if difference.is_same:
        return f"is correct on exactly the same test examples ({count})"
    interval = f"{points(difference.low)} to {points(difference.high)}".replace("+", "")
    what = f"changes test accuracy by {points(difference.difference)} points (95 %: {interval}, {count})"
    return what if difference.excludes_zero else f"{what}, not distinguishable from zero by these examples,"


def _speed(comparison: Comparison, row: Row) -> str:
    found = comparison.speeds.get(row)
    if found is None:
        return ""
    fast = f"is {found.ratio:.2g}× as fast on {row.where}"
    if found.low is None or found.high is None:
        return f"{fast} in one run each, with no interval"
    doubt = "" if found.is_distinguishable else ", not distinguishable from 1"
    return f"{fast} (95 %: {found.low:.2g} to {found.high:.2g}{doubt})"


def _subject(comparison: Comparison, base: Row, row: Row) -> str:
    """Return what tells a row from the baseline."""
    changed = {name: row.settings.get(name, "default") for name in comparison.names}
    changed = {name: value for name, value in changed.items() if value != base.settings.get(name, "default")}
    return " ".join(f"{name}={value}" for name, value in changed.items())


def _on(comparison: Comparison, row: Row) -> str:
    metric = comparison.choice.metric or ""
    better = "lower" if is_lower_better(metric) else "higher"
    return f"{metric} ({_value(comparison, row)}{' %' if metric.endswith('accuracy') else ''}; {better} is better)"


def _value(comparison: Comparison, row: Row) -> str:
    return metric_column(comparison.choice.metric or "").text(row)


def _listed(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    return _joined([*texts[:MOST_NAMED], *more])


def _joined(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _count(count: int, row: Row) -> str:
    what = "seed" if row.has_seeds_of_their_own else "run"
    return f"{count} {what}{'s' * (count != 1)}"
