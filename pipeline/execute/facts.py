"""Show a run to users: its plan, its results in the terminal and in Markdown, and its model card."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from pipeline.config.experiment import Experiment
from pipeline.config.names import split_override
from pipeline.config.schemas import TrackingSettings
from pipeline.console import Console
from pipeline.decide.plan import TRAIN, PlannedStage
from pipeline.paths import outputs_folder, shorter
from pipeline.provenance.code_state import CodeState, command, resuming_command, source_tags
from pipeline.provenance.identity import WITHOUT_EFFECT, is_among
from pipeline.runs.finding import debug_kind
from pipeline.runs.summary import UNITS, Summary, scored
from stages.errors import printable
from stages.settings.by_rows import has_columns, is_mixed, training_rows
from stages.settings.data import DataSettings
from stages.settings.series import SeriesSettings
from stages.settings.table import TableSettings
from stages.settings.train import TrainSettings

if TYPE_CHECKING:
    from stages.results import Dataset, Exported

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run or a sweep."""


def show_plan(experiment: Experiment, plan: Sequence[PlannedStage], console: Console) -> None:
    """Print the plan of a run."""
    chosen = experiment.document.precision
    precision = chosen.policy + "".join(f", {name} in {own}" for name, own in chosen.layers.items())
    where = f"tracking={experiment.tracking.kind}, results in {shorter(experiment.outputs)}"
    console.log(f"{experiment.name}: seed {experiment.seed}, precision {precision}, {where}")
    if by_rows := _by_rows(experiment):
        console.log(by_rows)
    if windows := _windows(experiment):
        console.log(windows)
    if patience := _patience(experiment):
        setting = f"{experiment.groups[TRAIN]}.early_stopping_patience"
        monitor = experiment.settings[TRAIN].monitor
        console.log(f"early stopping: after {patience} epochs without a better {monitor} ({setting})")
    if experiment.debug is not None:
        console.log(f"debug run ({experiment.debug.kind}): a check only; comparisons and resume= ignore its results")
    partly = any(stage.action != "runs" for stage in plan)
    header = ("", "", "stage", "option", "inputs", "result")
    rows = [
        (str(index), stage.action, stage.name, stage.option or stage.target, ", ".join(stage.inputs), stage.makes)
        for index, stage in enumerate(plan, 1)
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for index, action, name, option, inputs, result in (header, *rows):
        before = f"{index:>{widths[0]}}  {f'{action:8}' if partly else ''}"
        columns = f"{name:{widths[2]}}  {option:{widths[3]}}  {inputs:>{widths[4]}}"
        console.log(f"  {before}{columns} -> {result}")


def _by_rows(experiment: Experiment) -> str:
    """Return what follows from the number of rows of a table, as a line; empty if nothing does."""
    train, data = experiment.of(TRAIN, TrainSettings), experiment.of("load", TableSettings)
    if train is None or data is None or experiment.choices.get("train") != "by_rows" or not has_columns(vars(data)):
        return ""
    rows = training_rows(vars(data))
    return f"about {rows:,} training rows: batches of {train.batch_size}, up to {train.epochs} epochs (train=by_rows)"


def _windows(experiment: Experiment) -> str:
    """Return the number of windows of each split of time series, as a line; empty for other or large data."""
    data = experiment.of("load", SeriesSettings)
    if data is None:
        return ""
    from stages.data.series import planned  # imports pandas, which takes half a second

    windows = planned(data)
    return f"{data.source}: {windows.described}" if windows is not None else ""


def _patience(experiment: Experiment) -> int:
    """Return the patience of early stopping in epochs; 0 if it is off, or if that depends on the loaded data."""
    train, data = experiment.of(TRAIN, TrainSettings), experiment.of("load", DataSettings)
    if train is None:
        return 0
    is_table = isinstance(data, TableSettings) and is_mixed(data)
    patience = train.patience(has_images=data is None or not (data.is_without_images or is_table))
    return patience if patience < train.all_epochs else 0


def show_summary(summary: Summary, links: Sequence[tuple[str, str]], console: Console) -> None:
    """Print the results of the run, and where to find them."""
    console.log()
    console.wrapped(f"{summary.run_id or 'not tracked'}  {summary.status}", "run")
    for label, line in links:
        console.log(f"{label:11} {line}")
    for label, text in run_facts(summary):
        console.wrapped(text, label)
    may_resume = debug_kind(summary.choices) is None and "Try: resume=never" not in (summary.error or "")
    if may_resume and summary.status != "FINISHED" and any((summary.folder / "checkpoints").rglob("*.npz")):
        console.log(f"{'resume':11} {resuming_command(shorter(summary.folder))}  # continues from the last checkpoint")


def show_next(summary: Summary, outputs: Path, console: Console) -> None:
    """Print the commands that use the model of a finished run, if it has one.

    Args:
        summary: The run.
        outputs: The folder with the runs. If it is the default one, the commands name the run by its id, else by its
            folder.
        console: Prints the commands.
    """
    if summary.status != "FINISHED" or "saved_model" not in summary.exported:
        return
    is_default = bool(summary.run_id) and outputs == outputs_folder(None)
    run = (summary.run_id or "")[:ID_DIGITS] if is_default else quote(shorter(summary.folder))
    files = {"images": "<images>", "rows": "<table.csv>", "texts": "<texts>"}.get(summary.facts.unit or "")
    console.log(f"{'next':11} python -m pipeline predict {run} {files or '<files>'}")
    console.log(f"{'':11} python -m pipeline serve {run}")


ID_DIGITS = 8
"""Number of digits of a run's id that a command shows; enough to identify a run."""


def show_times(summary: Summary, console: Console) -> None:
    """Print the line with the duration of the command and of its parts, which add up to the total."""
    again = f" (this command; resumed after step {summary.resumed_from_step})" if summary.resumed_from_step else ""
    ran = {name: stage.seconds for name, stage in summary.stages.items() if stage.status != "skipped"}
    stages = [f"{name} {seconds:.1f}" for name, seconds in ran.items() if seconds >= 0.05]
    parts = [f"start {summary.start_seconds:.1f}", *stages, f"recording {summary.recording_seconds:.1f}"]
    console.wrapped(f"{summary.status} in {summary.seconds:.1f} s{again}: {', '.join(parts)}", "time")


def run_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return the results of a run as labels and texts. A text with an empty label continues the previous text."""
    facts = [("folder", shorter(summary.folder))]
    if (data := data_sizes(summary)) is not None:
        facts.append(("data", data))
    facts += _speed(summary)
    facts += _epochs(summary)
    if tested := _scores(summary, "test/"):
        facts.append(("test", tested))
    facts += [("verdict", sentence) for sentence in summary.facts.verdicts]
    for stage, names in summary.facts.custom_metrics.items():
        texts = [f"{name.removeprefix(stage + '/')} {summary.metrics[name]:.4g}" for name in names]
        facts.append((stage, ", ".join(texts)))
    for kind, path in summary.exported.items():
        facts.append(("export", f"{shorter(Path(path))} ({kind})"))
        if (difference := summary.metrics.get(f"export/{kind}/max_abs_diff")) is not None:
            facts.append(("", f"its predictions differ from the trained model's by at most {difference:.1e}"))
    return facts


def begun_tags(tracking: TrackingSettings, state: CodeState | None, overrides: Sequence[str] = ()) -> dict[str, str]:
    """Return the tags that a run or sweep has from the start: the user's, the command, the code, the description."""
    typed = command(overrides)
    description = _joined([tracking.note or "", f"Command: {code(typed)}"])
    return {**tracking.tags, "command": typed, **source_tags(state), NOTE: description}


def run_description(summary: Summary, typed: str, note: str | None, model: str) -> str:
    """Return the description of a run that has ended, in Markdown: its result, its command and its facts.

    Args:
        summary: The run.
        typed: The command of the run.
        note: The user's own Markdown, which comes first.
        model: The name of the run's model in MLflow.
    """
    facts = [("command", typed), *run_facts(summary)]
    if summary.run_id and "saved_model" in summary.exported:
        facts.append(("in Python", f'mlflow.pyfunc.load_model("runs:/{summary.run_id}/{model}")'))
    tested = _scores(summary, "test/")
    result = f"**{summary.status}**{f', test {escaped(tested)}' if tested else ''}"
    if summary.error:
        result = f"**{summary.status} in {summary.failed_stage}**: {escaped(summary.error)}"
    lines = [f"- {label}: {code(text)}" if label else f"  ({escaped(text)})" for label, text in facts]
    return _joined([note or "", result, "\n".join(lines)])


def sweep_description(table: str, typed: str, note: str | None) -> str:
    """Return the description of a sweep that has ended, in Markdown.

    Args:
        table: The comparison of its jobs in Markdown. Its title is omitted, because MLflow shows only three lines of a
            description until the user expands it.
        typed: The command of the sweep.
        note: The user's own Markdown, which comes first.
    """
    return _joined([note or "", re.sub(r"\A# .*\n+", "", table).strip(), f"Command: {code(typed)}"])


def data_sizes(summary: Summary) -> str | None:
    """Return the sizes of a run's data set; None if it has no data set."""
    data = summary.facts.data
    if data is None:
        return None
    examples = f"{data.train_examples:,} train, {data.val_examples:,} val, {data.test_examples:,} test"
    columns = [f"{count} {kind} column{'s' * (count > 1)}" for kind, count in data.columns.items()]
    sides = (data.height, data.width, data.channels)
    inputs = ", ".join(columns) or "×".join("?" if side is None else str(side) for side in sides)
    named = (
        (data.classes, "class", "classes"),
        (data.labels, "label", "labels"),
        (data.targets, "number to predict", "numbers to predict"),
    )
    targets = (f"{count} {one if count == 1 else several}" for count, one, several in named if count is not None)
    return f"{examples} {summary.facts.unit or 'examples'}; {next(targets, 'unknown targets')}; {inputs}"


def code(text: str) -> str:
    """Return `text` as inline code in Markdown, even if it contains backticks."""
    line = printable(" ".join(text.split()))
    fence = "`" * (1 + line.count("`"))
    return f"{fence} {line} {fence}" if "`" in line else f"`{line}`"


def escaped(text: str) -> str:
    """Return `text` with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", printable(" ".join(text.split())))


def _scores(summary: Summary, prefix: str, shown: str = "") -> str:
    """Return the scores of a split as text. The first score is followed by its confidence interval, if it has one.

    Args:
        summary: The run.
        prefix: The prefix of the metrics' recorded names, such as `test/`.
        shown: The prefix of their printed names.
    """
    names = [name for name in (*summary.task.metrics, "loss") if f"{prefix}{name}" in summary.metrics]
    texts = [f"{shown}{name} {scored(name, summary.metrics[prefix + name])}" for name in names]
    ends = (summary.facts.intervals.get(prefix + names[0]) if names else None) or ()
    known = [scored(names[0], end) for end in ends if end is not None]
    if len(known) == 2 and summary.facts.confidence:
        texts[0] += f" ({100 * summary.facts.confidence:g}% CI {known[0]} to {known[1]})"
    return ", ".join(texts)


VERB_BY_STAGE = {"evaluate": "tested", "export": "exported"}
"""Stages that use the trained weights, and the verb for what they do with them."""


def _ran(summary: Summary, stage: str) -> bool:
    return stage in summary.stages and summary.stages[stage].status in ("ran", "reused")


def _epochs(summary: Summary) -> list[tuple[str, str]]:
    """Return the validation scores of the best and the last epoch, and which of the two epochs' weights were used."""
    metrics = summary.metrics
    weights = summary.weights or {}
    if not {"train/best_epoch", "train/last_epoch"} <= metrics.keys():
        return []
    best, last = metrics["train/best_epoch"], metrics["train/last_epoch"]
    by = f" by {weights['monitor']}" if "monitor" in weights else ""
    rows = [["best epoch", f"{best:.0f} of {last:.0f}{by}: {_scores(summary, 'val/best_', 'val_')}"]]
    if last != best:
        scores = _scores(summary, "val/", "val_")  # empty for a run that was evaluated again
        rows.append(["last epoch", f"{last:.0f}{scores and f': {scores}'}"])
    verbs = [verb for stage, verb in VERB_BY_STAGE.items() if _ran(summary, stage)]
    if "epoch" in weights and verbs:
        chosen = rows[0 if weights["epoch"] == best else -1]
        ema = " (their EMA)" if weights.get("ema") else ""
        chosen[1] += f"; its weights{ema} were {' and '.join(verbs)}"
    return [(label, text) for label, text in rows]


def _speed(summary: Summary) -> list[tuple[str, str]]:
    """Return the speed of training."""
    metrics = summary.metrics
    rows = []
    by_unit = {unit: metrics.get(f"train/{unit}_per_second") for unit in UNITS}
    named = {"examples": summary.facts.unit or "examples"}
    rates = [f"{rate:,.0f} {named.get(unit, unit)}/s" for unit, rate in by_unit.items() if rate is not None]
    if rates and "train/step_milliseconds" in metrics:
        step = f"{metrics['train/step_milliseconds']:.2f} ms/step"
        replicas = f"{summary.replicas} replica{'s' * (summary.replicas != 1)}"
        rows.append(("speed", ", ".join([*rates, step, replicas])))
    return rows


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part)


SHORT = {"learning_rate": "lr", "batch_size": "batch", "weight_decay": "decay"}
"""Common short forms of settings, whose full names would be too wide for a column."""

DEFAULTS = "defaults"
"""The name of a run without overrides."""

LONGEST_NAME = 100
"""Maximum number of characters of a name."""


def label(overrides: Iterable[str], groups: Mapping[str, str | None]) -> str:
    """Return overrides in the short form that tables show.

    Args:
        overrides: The overrides as typed, without secrets.
        groups: The groups of the configuration. Overrides that choose an option come first, without the group's name.

    Example:
        >>> label(["strategy=mirrored", "optimizer.learning_rate=0.01", "seed=2"], {"strategy": "mirrored"})
        'mirrored lr=0.01 seed=2'
    """
    options_first = sorted(overrides, key=lambda text: split_override(text)[0] not in groups)
    return " ".join(_part(text, groups) for text in options_first)[:LONGEST_NAME]


def run_name(overrides: Sequence[str], groups: Mapping[str, str], folder: Path) -> str:
    """Return the name of a run that is not a job of a sweep: its overrides, and the end of its folder's name.

    Args:
        overrides: The overrides of the run. Those that do not change the result are omitted.
        groups: The option of each group of the configuration.
        folder: The folder of the run.
    """
    chosen = [text for text in overrides if not is_among(split_override(text)[0], WITHOUT_EFFECT)]
    return f"{label(chosen, groups) or DEFAULTS} {folder.name[-8:]}"


def sweep_name(labels: Sequence[str]) -> str:
    """Return the name of a sweep: the settings that vary, and the number of jobs.

    Args:
        labels: For each job, its overrides without those that all jobs share.

    Example:
        >>> sweep_name(["strategy=mirrored seed=1", "strategy=mirrored seed=2", "strategy=one_device seed=1"])
        'strategy × seed, 3 jobs'
    """
    keys = dict.fromkeys(_short(split_override(text)[0]) for label in labels for text in label.split() if "=" in text)
    return f"{' × '.join(keys) or 'sweep'}, {len(labels):,} job{'s' if len(labels) > 1 else ''}"


def _part(override: str, groups: Mapping[str, str | None]) -> str:
    key, value = split_override(override)
    if key == "debug":
        return override
    if "=" not in override or key in groups:
        return value or key
    return f"{_short(key)}={value}"


def _short(key: str) -> str:
    name = key.rpartition(".")[2]
    return SHORT.get(name, name)


TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def model_card(summary: Summary, model: "Exported", data: "Dataset | None" = None) -> str:
    """Return the model card of a run in Markdown; `data` is the data set that the model was trained on."""
    import jinja2

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["escaped"] = escaped
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        summary=summary,
        model=model,
        data=data,
        sizes=data_sizes(summary) or "sizes not recorded",
        scored=scored,
        facts=dict(run_facts(summary)),
        date=datetime.now(UTC).date(),
        command=command(summary.overrides),
        code=code,
    )
