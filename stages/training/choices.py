"""Choices that a training makes for its user: printed, recorded, and kept by a run that resumes on the same devices."""

from dataclasses import replace

from stages.checkpoints.progress import Progress
from stages.reporter import Reporter
from stages.results import Strategy
from stages.settings.train import TrainSettings


def with_choices(settings: TrainSettings, progress: Progress, strategy: Strategy) -> TrainSettings:
    """Returns `settings` with what this run has chosen before, where they leave it open.

    On other devices everything is chosen again.
    """
    if not _are_of(progress, strategy):
        return settings
    jit = progress.choices.get("jit")
    steps = progress.choices.get("steps_per_call")
    return replace(
        settings,
        jit=jit if settings.jit in ("auto", "measure") and jit is not None else settings.jit,
        steps_per_call=settings.steps_per_call or steps,
    )


def note_jit(progress: Progress, strategy: Strategy, jit: object, reason: object, reporter: Reporter) -> str:
    """Notes whether XLA compiles the step, and prints why where nobody has asked; returns this run's first reason."""
    before = progress.choices if _are_of(progress, strategy) else {}
    if before.get("jit") == jit:
        reason = before["jit_reason"]
    progress.choices = {**before, "devices": list(strategy.devices), "jit": jit, "jit_reason": str(reason)}
    if reason != "as asked":
        reporter.log(f"train.jit={jit}: {reason}")
    if "steps_per_call" in before:
        reporter.log(f"train.steps_per_call={before['steps_per_call']}: as before")
    return str(reason)


def note_steps(progress: Progress, steps: int, reporter: Reporter) -> None:
    """Notes the number of steps in a call, and prints it where it has not been noted."""
    if progress.choices.get("steps_per_call") != steps:
        progress.choices["steps_per_call"] = steps
        reporter.log(f"train.steps_per_call={steps}: as many as keep Python's share of the time under 2 %")


def _are_of(progress: Progress, strategy: Strategy) -> bool:
    return bool(progress.choices.get("devices") == list(strategy.devices))
