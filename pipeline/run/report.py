"""Prints a run: its plan before it begins, and at its end its results, its files and its times."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.experiment import Experiment
from pipeline.console import Console
from pipeline.paths import shorter
from pipeline.planning.plan import PlannedStage
from pipeline.provenance.code_state import resuming_command
from pipeline.run.description import sizes
from pipeline.run_folder.runs import debug_kind
from pipeline.run_folder.summary import Summary
from stages.checkpoints.names import can_start

UNITS = ("images", "features")
"""Kinds of examples that training may count: features are what a frozen backbone has made of images."""

TRAINING = {
    "build": "building and tracing",
    "features": "features",
    "steps": "steps",
    "input_wait": "waiting for input",
    "validation": "validation",
    "callbacks": "callbacks",
    "checkpoints": "checkpoints",
    "other": "other",
}
"""The parts of training's time, `train/<part>_seconds`, and how they are called."""


def show_plan(experiment: Experiment, plan: Sequence[PlannedStage], console: Console) -> None:
    """Prints what will be done, before it is done."""
    chosen = experiment.document.precision
    precision = chosen.policy + "".join(f", {name} in {own}" for name, own in chosen.layers.items())
    console.log(f"{experiment.name}: seed {experiment.seed}, {precision}, tracking {experiment.tracking.kind}")
    if experiment.debug is not None:
        console.log(f"debug run: {experiment.debug.kind}. It resumes nothing, and its results count nowhere")
    widths = [max((len(text) for text in column), default=0) for column in zip(*map(_cells, plan), strict=True)]
    digits = len(str(len(plan)))
    partly = any(stage.action != "runs" for stage in plan)
    for index, stage in enumerate(plan, 1):
        name, option, inputs, makes = _cells(stage)
        action = f"{stage.action:8}" if partly else ""
        row = f"{name:{widths[0]}}  {option:{widths[1]}}  {inputs:>{widths[2]}} -> {makes}"
        console.log(f"  {index:>{digits}}  {action}{row}".rstrip())


def show_summary(summary: Summary, how_to_open: str | None, console: Console) -> None:
    """Prints the results of the run, and where everything is."""
    metrics = summary.metrics
    rows = []
    rows.append(("run", f"{summary.run_id or 'not tracked'}  {summary.status}"))
    if how_to_open:
        rows += zip(("open", ""), how_to_open.splitlines(), strict=False)
    rows.append(("folder", shorter(Path(summary.folder))))
    if (data := sizes(summary.facts.get("data", {}))) is not None:
        rows.append(("data", data))
    rows += _epochs(summary)
    if tested := _tested(summary):
        rows.append(("test", tested))
    rows += _speed(summary)
    may_resume = debug_kind(summary.choices) is None
    if may_resume and summary.status != "FINISHED" and can_start(Path(summary.folder, "checkpoints")):
        rows.append(("resume", f"{resuming_command()}  (from its last checkpoint)"))
    for kind, path in summary.exported.items():
        rows.append(("export", f"{shorter(Path(path))} ({kind})"))
        if (difference := metrics.get(f"export/{kind}/max_abs_diff")) is not None:
            rows.append(("", f"its predictions differ from the model's by {difference:.1e} at most"))
    console.log()
    for label, text in rows:
        console.log(f"{label:11} {text}")


def show_times(summary: Summary, console: Console) -> None:
    """Prints, last of all, how long the command took and for what; the parts add up to the whole."""
    again = f" (this command; resumed after step {summary.resumed_from_step})" if summary.resumed_from_step else ""
    stages = [f"{name} {stage.seconds:.1f}" for name, stage in summary.stages.items() if stage.status != "skipped"]
    parts = [f"start {summary.start_seconds:.1f}", *stages, f"recording {summary.recording_seconds:.1f}"]
    console.log(f"{'time':11} {summary.status} in {summary.seconds:.1f} s{again}: {', '.join(parts)}")


def _cells(stage: PlannedStage) -> tuple[str, str, str, str]:
    return stage.name, stage.option or stage.target, ", ".join(stage.inputs), stage.makes


def _scores(metrics: Mapping[str, float], prefix: str) -> str:
    names = [name for name in ("accuracy", "loss") if f"{prefix}{name}" in metrics]
    return ", ".join(f"{name} {metrics[prefix + name]:.4f}" for name in names)


def _tested(summary: Summary) -> str:
    """Returns the scores on the test split, the accuracy with its interval."""
    scores = _scores(summary.metrics, "test/")
    ends = summary.facts.get("intervals", {}).get("test/accuracy")
    if not ends:
        return scores
    accuracy, separator, rest = scores.partition(", ")
    low, high = ends
    return f"{accuracy} ({100 * summary.facts['confidence']:g} %: {low:.4f} to {high:.4f}){separator}{rest}"


def _epochs(summary: Summary) -> list[tuple[str, str]]:
    """Returns the validation of the best and of the last epoch, and of which of them the weights are."""
    metrics = summary.metrics
    weights = summary.weights or {}
    if not {"train/best_epoch", "train/last_epoch"} <= metrics.keys():
        return []
    best, last = metrics["train/best_epoch"], metrics["train/last_epoch"]
    tested = "; test and export have its weights" + (" (EMA)" if weights.get("ema") else "")
    by = f" (by {weights['monitor']})" if "monitor" in weights else ""
    rows = [("best epoch", f"{best:.0f}{by}: val {_scores(metrics, 'val/best_')}")]
    if last != best:
        rows.append(("last epoch", f"{last:.0f}: val {_scores(metrics, 'val/')}"))
    if "epoch" in weights:
        index = 0 if weights["epoch"] == best else -1
        label, text = rows[index]
        rows[index] = (label, text + tested)
    return rows


def _speed(summary: Summary) -> list[tuple[str, str]]:
    """Returns how fast training was, and what its time went into."""
    metrics = summary.metrics
    rows = []
    by_unit = {unit: metrics.get(f"train/{unit}_per_second") for unit in UNITS}
    rates = [f"{rate:,.0f} {unit}/s" for unit, rate in by_unit.items() if rate is not None]
    if rates and "train/step_milliseconds" in metrics:
        step = f"{metrics['train/step_milliseconds']:.2f} ms a step"
        rows.append(("speed", ", ".join([*rates, step, f"{summary.replicas} replica(s)"])))
    parts = {name: metrics[f"train/{name}_seconds"] for name in TRAINING if f"train/{name}_seconds" in metrics}
    if parts:
        rows.append(("training", ", ".join(f"{TRAINING[name]} {seconds:.1f} s" for name, seconds in parts.items())))
    return rows
