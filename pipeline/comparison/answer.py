"""The answer in sentences: which setting to take, by how much others differ, and which differences may be chance.

The terminal, Markdown, the page and MLflow show the same sentences.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.comparison.comparison import Comparison, are_validated_alike
from pipeline.comparison.frame import metric_column
from pipeline.comparison.rows import ComparedRun, Row
from pipeline.comparison.seeds import seeds_to_tell
from pipeline.config.names import split_override
from pipeline.provenance.identity import OF_A_COMMAND
from stages.evaluation.paired_tests import MetricDifference, changed, unit_of
from stages.settings.ranges import quoted

MOST_NAMED = 4
"""Rows that one sentence names."""


@dataclass(frozen=True)
class Answer:
    """The sentences of a comparison."""

    choice: str  # the row to take, and on what it was chosen
    commands: Sequence[str]  # that run it, once: of a search with several goals one for each of the best
    sentences: Sequence[str]  # what each row changes against the baseline, that of the row to take first
    unfinished: Sequence[str]  # which trials were pruned, and what became of each other run, and why


def answer(comparison: Comparison) -> Answer:
    """Return what a comparison says."""
    pruned = [f"{run.number} (epoch {run.pruned_after})" for run in comparison.runs if run.pruned_after is not None]
    lines = [f"pruned: trials {_joined(pruned)}"] if pruned else []
    for run in comparison.runs:
        if not run.has_finished and run.pruned_after is None:
            lines.append(f"job {run.number} {run.status}: {run.reason or run.folder.name}")
    return Answer(choice(comparison), _commands(comparison), sentences(comparison), lines)


def choice(comparison: Comparison) -> str:
    """Return which row to take, and on what it was chosen."""
    rows, chosen = comparison.rows, comparison.choice
    if comparison.search is not None:
        return comparison.search.answer
    if not rows:
        are_debug = any(run.is_debug for run in comparison.runs)
        return "no best setting: debug runs only check that a setting works" if are_debug else "no run has finished"
    if len(rows) == 1:
        seeds, count = {run.seed for run in rows[0].runs}, len(rows[0].runs)
        return f"one setting: nothing to choose between ({_plural(count, 'seed' if len(seeds) == count else 'run')})"
    if not are_validated_alike([run.summary for row in rows for run in row.runs]):
        return "no best setting: the runs were validated on different examples, and none is chosen on test"
    if chosen.metric is None:
        return "no best setting: the runs have no validation metric in common, and none is chosen on test"
    if chosen.best is None:
        return f"no best setting: {chosen.metric} is not a number in any"
    column = metric_column(rows, chosen.metric)
    better = "lower" if chosen.is_lower_better else "higher"
    shown = f"{column.text(chosen.best)}{'%' if '%' in column.style else ''}; {better} is better"
    lead = f"{chosen.metric} ({shown}{_on_shared_seeds(rows)})"
    if not chosen.tied:
        doubt = "" if chosen.has_seeds else "; of one run each, so that its lead may be chance: seed=1,2,3 would tell"
        return f"best: {chosen.best.label}, chosen on {lead}, never on test{doubt}"
    tied = [f"{row.label} ({column.text(row)})" for row in chosen.tied[:MOST_NAMED]]
    more = [f"{len(chosen.tied) - MOST_NAMED} more"] if len(chosen.tied) > MOST_NAMED else []
    return (
        f"no single best: {chosen.best.label} leads on {lead}, and cannot be told from {_joined([*tied, *more])} "
        f"as their seeds vary. Take {chosen.rows[0].label}: of these {chosen.reason}"
    )


def _on_shared_seeds(rows: Sequence[Row]) -> str:
    """Return on what rows are compared where some lack seeds, whose means may be in another order."""
    seeds = [set(row.by_seed(lambda run: run.number)) for row in rows]
    shared = set.intersection(*seeds)
    return "; on the seeds that two rows share" if shared and shared != set.union(*seeds) else ""


def _commands(comparison: Comparison) -> list[str]:
    """Return the commands that run the best trials of a search, or the row to take, without its seeds."""
    if comparison.search is not None:
        return list(map(run_it, comparison.runs_to_take))
    return [run_it(row.runs[0], has_seeds=len({run.seed for run in row.runs}) > 1) for row in comparison.choice.rows]


def run_it(run: ComparedRun, has_seeds: bool = False) -> str:
    """Return the command that makes a run again. has_seeds: whether it is one of several, so that its seed is none."""
    left_out = (*OF_A_COMMAND, *(["seed"] if has_seeds else []))
    lines = [line for line in run.summary.overrides if split_override(line)[0].partition(".")[0] not in left_out]
    if any(split_override(line)[0] == "experiment" for line in lines):
        lines.append("sweep=none")  # the experiment's file may say itself what varies
    folders = map(shlex.quote, run.config_dirs)
    words = [*(f"--config-dir {folder}" for folder in folders), *(shlex.quote(_typed(line)) for line in lines)]
    return " ".join(["python -m pipeline", *words])


def _typed(line: str) -> str:
    """Return an override as Hydra reads it, its value quoted where that has signs of Hydra's grammar."""
    name, equals, value = line.partition("=")
    is_whole = value[:1] + value[-1:] in ("[]", "{}", "''", '""') and len(value) > 1
    if is_whole or "${" in value or not set(value) & set("()[]{},'\"\\"):
        return line
    return f"{name}{equals}{quoted(value)}"


def sentences(comparison: Comparison) -> list[str]:
    """Return what each row changes against the baseline, that of the row to take first."""
    base = comparison.baseline
    if base is None:
        return []
    rows = [row for row in comparison.rows if row is not base]
    rows.sort(key=lambda row: row is not comparison.best)
    return [sentence for row in rows if (sentence := _sentence(comparison, base, row))]


def _sentence(comparison: Comparison, base: Row, row: Row) -> str:
    """Return what a row changes; empty where nothing is known."""
    parts = []
    if difference := comparison.differences.get(row):
        parts.append(_changes(comparison, row, difference))
    if (speed := comparison.speeds.get(row)) is not None:
        interval = " in one run each, with no interval: more seeds would tell"
        if speed.is_telling:
            doubt = "" if speed.is_distinguishable else ", not distinguishable from 1"
            interval = f" (95%: {speed.low:.2g} to {speed.high:.2g}{doubt})"
        elif speed.low is not None:
            seeds = seeds_to_tell(comparison, row, base.rate, is_ratio=True)
            interval = f" in these runs, which vary too much to tell it from 1: {seeds} would"
        parts.append(f"is {speed.ratio:.2g}× as fast{interval}")
    settings = {name: row.settings.get(name, "default") for name in comparison.names}
    subject = [f"{name}={value}" for name, value in settings.items() if value != base.settings.get(name, "default")]
    return f"{' '.join(subject)} {' and '.join(parts)}".rstrip(",") if parts else ""


def _changes(comparison: Comparison, row: Row, difference: MetricDifference) -> str:
    metric = difference.metric
    count = f"n = {_plural(difference.seeds, 'seed')}"
    if not difference.of_settings:
        count += ": two trained models, not two settings"
    if difference.is_same:
        same = "is correct on exactly the same" if metric == "accuracy" else f"has the same {metric} on the same"
        return f"{same} test examples ({count})"
    low, high = (changed(metric, end).replace("+", "") for end in (difference.low, difference.high))
    change = f"{changed(metric, difference.difference)}{unit_of(metric)}"
    if not comparison.is_telling(difference):
        seeds = seeds_to_tell(comparison, row, f"test/{metric}") if difference.of_settings else "more test examples"
        return f"changes test {metric} by {change} ({count}), which cannot be told from none: {seeds} would tell,"
    what = f"changes test {metric} by {change} (95%: {low} to {high}, {count})"
    return what if difference.excludes_zero else f"{what}, not distinguishable from zero by these examples,"


def _joined(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
