"""The answer in sentences: which combination wins, by how much, and what would settle an open question.

The console, Markdown, the page and MLflow show the same sentences.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.comparison.choice import Choice, Lead, are_validated_alike
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.frame import DIFFERENCE, Column, difference_column, metric_column, speed_column
from pipeline.comparison.rows import Row, RunRecord
from pipeline.comparison.seeds import MAX_SEEDS, seeds_text, seeds_to_settle
from pipeline.comparison.words import interval_texts, is_percentage, joined, metric_label, plural, value_text
from pipeline.config.names import split_override
from pipeline.provenance.identity import COMMAND_SETTINGS
from stages.settings.ranges import quoted

NEVER_ON_TEST = "and the test split never decides"


@dataclass(frozen=True)
class Answer:
    """The sentences of a comparison."""

    choice: str
    """The sentence that names the winner and its lead."""

    commands: Sequence[str]
    """Commands that run the recommended combination; for a search with several goals, one per best trial."""

    sentences: Sequence[str]
    """The difference of each combination from the baseline, the winner first."""

    notes: Sequence[str]
    """Remarks that apply to all differences."""

    unfinished: Sequence[str]
    """The pruned trials, and the status of each other run without results, with the reason."""


def answer_of(comparison: Comparison) -> Answer:
    """Return the conclusions of a comparison as sentences."""
    pruned = [f"{run.number} (epoch {run.pruned_after})" for run in comparison.runs if run.pruned_after is not None]
    lines = [f"pruned: {'trials' if len(pruned) > 1 else 'trial'} {joined(pruned)}"] if pruned else []
    for run in comparison.runs:
        if not run.has_finished and run.pruned_after is None:
            lines.append(f"job {run.number} {run.status}: {run.reason or run.folder.name}")
    return Answer(choice(comparison), _commands(comparison), sentences(comparison), _notes(comparison), lines)


def choice(comparison: Comparison) -> str:
    """Return which combination wins, and by how much."""
    rows, chosen = comparison.rows, comparison.choice
    if comparison.search is not None:
        return comparison.search.answer
    if not rows:
        return _without_rows(comparison.runs)
    if len(rows) == 1:
        return _single_combination(rows[0], chosen.metric, comparison.primary)
    if not are_validated_alike([run.summary for row in rows for run in row.runs]):
        return f"No winner: the runs were validated on different examples, {NEVER_ON_TEST}."
    if chosen.metric is None:
        return f"No winner: the runs have no validation metric in common, {NEVER_ON_TEST}."
    if chosen.best is None:
        name = metric_label(chosen.metric)
        return f"No winner: each combination has a run whose {name} is not a finite number."
    if not chosen.leads:
        value = _value(chosen.metric, chosen.best)
        return f"{chosen.best.label} wins: no other combination has a finite {metric_label(chosen.metric)} ({value})."
    if not chosen.has_seeds:
        return _single_seeds(chosen, chosen.metric, chosen.best)
    return _tie(comparison, chosen.metric, chosen.best) if chosen.tied else _win(chosen, chosen.metric, chosen.best)


def _without_rows(runs: Sequence[RunRecord]) -> str:
    """Return the sentence for runs without any results."""
    if any(run.is_debug for run in runs):
        return "No winner: debug runs only check that a combination works."
    counts = Counter(run.status for run in runs if run.status != "FINISHED")
    if not counts:
        return "No run has finished."
    statuses = joined([f"{count} {status}" for status, count in counts.items()])
    return f"No winner: {'the only run has not' if len(runs) == 1 else 'no run has'} finished ({statuses})."


def _single_combination(row: Row, metric: str | None, primary: str) -> str:
    """Return the sentence for a single combination."""
    keys = dict.fromkeys(filter(None, (metric, f"test/{primary}")))
    columns = [metric_column([row], key) for key in keys if key in row.metrics]
    results = ", ".join(f"{metric_label(column.key)} {column.text(row)}" for column in columns) or "no metrics"
    count, seeds = len(row.runs), {run.seed for run in row.runs}
    if count == 1:
        return f"Nothing to compare: this is one run, with {results}."
    runs = plural(count, "seed" if len(seeds) == count else "run")
    return f"Nothing to compare: all runs have the same settings. Over {runs}: {results} (mean ± standard deviation)."


def _win(chosen: Choice, metric: str, best: Row) -> str:
    """Return the sentence for a combination that is significantly better than all others."""
    assert chosen.runner_up is not None
    lead = chosen.leads[chosen.runner_up]
    assert lead.interval is not None
    (by, low, high), decimals = interval_texts(metric, (lead.by, lead.interval.low, lead.interval.high))
    unit = " points" if is_percentage(metric) else ""
    direction = "lower" if chosen.is_lower_better else "higher"
    other = "the runner-up's" if len(chosen.leads) > 1 else "the other combination's"
    value, (first, second) = value_text(metric, lead.mean, decimals), lead.seeds
    shared = f" on the {plural(first, 'seed')} that both have" if lead.is_partial else ""
    seeds = plural(first, "seed") if first == second else f"{first} and {second} seeds"
    return (
        f"{best.label} wins: its {metric_label(metric)} of {value}{shared} is {by}{unit} {direction} than {other} "
        f"(95% CI {low} to {high}, {seeds})."
    )


def _tie(comparison: Comparison, metric: str, best: Row) -> str:
    """Return the sentences for combinations whose differences may be seed noise."""
    chosen = comparison.choice
    count, total, name = len(chosen.tied) + 1, len(chosen.leads) + 1, metric_label(metric)
    default = f"Default choice: {chosen.rows[0].label} ({chosen.reason})."
    if all(_is_identical(chosen.leads[row]) for row in chosen.tied):
        return f"{_same(count, total, name, chosen.is_lower_better)}, {_value(metric, best)}. {default}"
    needed = seeds_to_settle(comparison)
    among = f" among {total} combinations" if count == total else ""
    finding = f"differences in {name} are within seed noise"
    if count < total:
        finding = f"{count} of {total} combinations lead, and their {finding}"
    settled = ""
    if needed is not None:
        verb = "would settle it" if needed <= MAX_SEEDS else "would be needed to settle it"
        settled = f" {seeds_text(needed).capitalize()} per combination {verb}."
    return f"No clear winner{among}: {finding}.{settled} {default}"


def _is_identical(lead: Lead) -> bool:
    """Return whether the runs of both rows have the same values."""
    return lead.by == 0 and (lead.interval is None or lead.interval.low == lead.interval.high)


def _same(count: int, total: int, name: str, is_lower_better: bool) -> str:
    """Return the beginning of a sentence about `count` of `total` combinations with the same metric."""
    if count == total:
        return f"{'Both' if total == 2 else f'All {total}'} combinations have the same {name}"
    return f"{count} of {total} combinations have the same {'lowest' if is_lower_better else 'highest'} {name}"


def _single_seeds(chosen: Choice, metric: str, best: Row) -> str:
    """Return the sentences for combinations of one seed each, which cannot be distinguished from seed noise."""
    name, value = metric_label(metric), _value(metric, best)
    chance = "Each combination has one seed, so this may be chance. To find out, add seed=1,2,3."
    equal = sum(_is_identical(lead) for lead in chosen.leads.values())
    if equal:
        same = _same(equal + 1, len(chosen.leads) + 1, name, chosen.is_lower_better)
        return f"{same}, {value}. Default choice: {chosen.rows[0].label} ({chosen.reason}). {chance}"
    least = "lowest" if chosen.is_lower_better else "highest"
    assert chosen.runner_up is not None
    second = _value(metric, chosen.runner_up)
    other = "the runner-up" if len(chosen.leads) > 1 else "the other combination"
    return f"{best.label} has the {least} {name}: {value}, compared with {second} for {other}. {chance}"


def _value(metric: str, row: Row) -> str:
    return value_text(metric, row.mean(metric) or 0.0)


def _commands(comparison: Comparison) -> list[str]:
    """Return the commands that run the best trials of a search, or the recommended combination, without its seeds."""
    if comparison.search is not None:
        return list(map(command_of, comparison.runs_to_take))
    return [
        command_of(row.runs[0], has_seeds=len({run.seed for run in row.runs}) > 1) for row in comparison.choice.rows
    ]


def command_of(run: RunRecord, has_seeds: bool = False) -> str:
    """Return the command that repeats a run.

    Args:
        has_seeds: Whether the run is one of several seeds, so the command leaves its seed out.
    """
    left_out = (*COMMAND_SETTINGS, *(["seed"] if has_seeds else []))
    lines = [line for line in run.summary.overrides if split_override(line)[0].partition(".")[0] not in left_out]
    if any(split_override(line)[0] == "experiment" for line in lines):
        lines.append("sweep=none")  # the experiment's file may define a sweep, too
    folders = map(shlex.quote, run.config_dirs)
    words = [
        *(f"--config-dir {folder}" for folder in folders),
        *(shlex.quote(_quoted_override(line)) for line in lines),
    ]
    return " ".join(["python -m pipeline", *words])


def _quoted_override(line: str) -> str:
    """Return an override with its value quoted if it contains characters of Hydra's grammar."""
    name, equals, value = line.partition("=")
    is_whole = value[:1] + value[-1:] in ("[]", "{}", "''", '""') and len(value) > 1
    if is_whole or "${" in value or not set(value) & set("()[]{},'\"\\"):
        return line
    return f"{name}{equals}{quoted(value)}"


def sentences(comparison: Comparison) -> list[str]:
    """Return a line per combination with its difference from the baseline, the recommended one first."""
    base = comparison.baseline
    if base is None:
        return []
    rows = [row for row in comparison.ranked if row is not base]
    rows.sort(key=lambda row: row is not comparison.best)
    columns = difference_column(comparison), speed_column(comparison)
    lines = []
    for row in rows:
        texts = [_difference(comparison, column, row) for column in columns if row in column.figures]
        if texts:
            lines.append(f"{changes(comparison, row)}: {'; '.join(texts)}")
    return lines


def changes(comparison: Comparison, row: Row) -> str:
    """Return the settings of a row that differ from the baseline's."""
    before = comparison.baseline.settings if comparison.baseline else {}
    settings = {name: row.settings.get(name, "default") for name in comparison.names}
    return " ".join(f"{name}={value}" for name, value in settings.items() if value != before.get(name, "default"))


def _difference(comparison: Comparison, column: Column, row: Row) -> str:
    """Return a row's difference from the baseline in a column."""
    interval, note = column.interval(row), column.notes.get(row, "")
    remarks = [f"95% CI {interval}"] if interval else []
    difference, base = comparison.differences.get(row), comparison.baseline
    if difference is not None and base is not None and column.key == DIFFERENCE:
        is_partial = difference.seeds < max(len(row.runs), len(base.runs))
        remarks += [f"on {plural(difference.seeds, 'seed')}"] if is_partial else []
    remarks += [note] if note else []
    name = column.heading.removesuffix(" vs baseline")
    return f"{name} {column.value(row)}" + (f" ({', '.join(remarks)})" if remarks else "")


def _notes(comparison: Comparison) -> list[str]:
    """Return the remarks that apply to all differences."""
    if any(not difference.of_settings for difference in comparison.differences.values()):
        return [
            "Each combination has one seed, so the intervals compare the trained models and not the settings. "
            "Add seed=1,2,3 to compare the settings."
        ]
    return []


def best_mark(comparison: Comparison) -> str:
    """Return what `*` marks: the winner, or the default choice or the leader if there is none."""
    chosen = comparison.choice
    if comparison.search is not None:
        return "best trials" if len(chosen.rows) > 1 else "best trial"
    return "winner" if chosen.has_seeds and not chosen.tied else "default choice" if chosen.tied else "leader"


def marks_of(comparison: Comparison) -> dict[Row, list[str]]:
    """Return the labels of the rows that have one, such as `winner` and `baseline`."""
    if len(comparison.rows) < 2:
        return {}
    marks = {row: [best_mark(comparison).removesuffix("s")] for row in comparison.choice.rows}
    if comparison.baseline is not None:
        marks.setdefault(comparison.baseline, []).append("baseline")
    return marks
