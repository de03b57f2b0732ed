"""The phases of a training, one after another, and its result."""

from pathlib import Path

import keras

from stages.callbacks.build import build_callbacks, save_weights
from stages.checkpoints.files import Checkpoints
from stages.distribution.collectives import is_chief
from stages.evaluation.test_set import validation_facts
from stages.networks.batch_norm import normalizes_by_batch
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.training.memory import gpu_peak
from stages.training.outcome import result_of, write_files
from stages.training.phase import Phase
from stages.training.session import Session, Timing, plan_phases, starting_point


def train_phases(  # noqa: PLR0913  # those of a stage
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None,
    folder: Path | None,
    cache: Path | None,
) -> Trained:
    """Train `model` in place; see `stages.train.train`."""
    timing = Timing()
    reporter = reporter or Silent()
    network = type(model.network.core)
    if network.test_step is not keras.Model.test_step:
        reporter.warn(f"{network.__name__}.test_step is not called: validation takes the task's loss and metrics")
    if warning := settings.check_share(strategy.in_sync, len(dataset.train)):
        reporter.warn(warning)
    if settings.optimizer.accumulation > 1 and normalizes_by_batch(model.network):
        reporter.warn(
            f"optimizer.accumulation={settings.optimizer.accumulation}: BatchNorm normalizes each part of a batch by "
            "the part's own statistics, so results differ from those of whole batches"
        )
    best, callbacks = build_callbacks(settings, model.task, reporter, folder, model.metrics)
    place = folder / "checkpoints" if folder is not None else None
    checkpoints = Checkpoints(place if is_chief(strategy) else None, settings)
    session = Session(model, dataset, strategy, best, callbacks, timing, checkpoints, reporter, cache)
    plans = plan_phases(model.network, settings)
    checkpoint, start = starting_point(session, plans, place)
    phase: Phase | None = None
    params: dict[str, object] = {}
    for plan in plans[start:]:
        if phase is not None and settings.restore_best:
            best.restore()
        phase = Phase(session, plan, checkpoint, phase)
        checkpoint = None  # it may be large
        phase.run()
        params |= phase.params
    assert phase is not None

    reporter.doing("writing the best weights")
    ema = phase.step.ema
    if ema is not None and not settings.optimizer.ema_use and place is not None:
        with ema.as_weights():
            save_weights(phase.validation.present_model().network, place / "ema.weights.h5")
    if settings.restore_best:
        best.restore()
    trained = phase.validation.present_model()
    files = write_files(trained, phase.progress, best, folder)
    chosen = {name: params[name] for name in ("jit", "jit_reason", "steps_per_call")}
    record = Record(
        params,
        timing.metrics() | gpu_peak(strategy),
        files,
        summary={"train": chosen, **validation_facts(dataset)},
    )
    return result_of(trained, phase.progress, best, settings, record)
