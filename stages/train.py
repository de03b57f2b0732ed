"""The `train` stage: the training loop, with validation, callbacks and the best weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import keras

from stages.callbacks.best_weights import save_weights
from stages.callbacks.build import build_callbacks
from stages.callbacks.timing import Timing
from stages.checkpoints.files import Checkpoint, Checkpoints, from_bytes, newest, to_bytes
from stages.checkpoints.forks import forked, with_schedule
from stages.checkpoints.progress import Progress
from stages.checkpoints.saved import restore_trained, save_trained
from stages.checkpoints.state import progress_of, restore_weights
from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import from_chief, has_workers, is_chief
from stages.errors import UserError
from stages.evaluation.test_set import validation_facts
from stages.networks.batch_norm import normalizes_by_batch
from stages.optimization.losses import class_weights
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.reuse import allow_reuse
from stages.settings.train import TrainSettings
from stages.training.choices import note_jit, with_choices
from stages.training.epochs import Epochs, build_engine
from stages.training.memory import gpu_peak
from stages.training.outcome import result_of, write_files
from stages.training.phase_setup import BuiltPhase, Training, build_phase, start_phase
from stages.training.phases import Phase, phases, starting_phase


def train(  # noqa: PLR0913  # a stage's parameters name its inputs
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Under a parameter-server strategy the result is a copy on one device. With fine-tuning, a second phase begins with
    the result of the first; epochs, history and the best weights are those of both.

    Args:
        reporter: receives the metrics of each epoch, and the progress within it.
        folder: the run's; takes checkpoints, `checkpoints/best.weights.h5`, `checkpoints/ema.weights.h5` where an
            EMA is kept and not used, and `plots/history.png`. Training resumes from the last intact checkpoint in it.
            None: no files.
        cache: the folder that runs share; takes the features of a frozen backbone.

    Raises:
        UserError: where the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    _refuse_own_steps(model.network.core)
    timing = Timing()
    reporter = reporter or Silent()
    if warning := settings.check_share(strategy.in_sync, len(dataset.train)):
        reporter.warn(warning)
    settings = replace(settings, class_weights=class_weights(settings.class_weights, dataset))
    plan = phases(model.network, settings)
    if settings.optimizer.accumulation > 1 and normalizes_by_batch(model.network):
        reporter.warn(
            f"optimizer.accumulation={settings.optimizer.accumulation}: BatchNorm normalizes each part of a batch by "
            "the part's own statistics, so results differ from those of whole batches"
        )
    best, callbacks = build_callbacks(settings, reporter, timing, folder, model.metrics)
    place = folder / "checkpoints" if folder is not None else None
    checkpoints = Checkpoints(place if is_chief(strategy) else None, settings, reporter.is_secret)
    training = Training(model, dataset, strategy, callbacks, checkpoints, reporter)
    checkpoint, start = _starting_point(training, plan, place)
    params: dict[str, object] = {}
    built: BuiltPhase | None = None
    for phase in plan[start:]:
        if built is not None and settings.restore_best:
            best.restore()
        built = _begin_phase(training, phase, checkpoint, built, cache)
        checkpoint = None  # it may be large
        _run_phase(training, built)
        params |= built.facts
    assert built is not None

    reporter.doing("writing the best weights")
    ema = built.step.ema
    if ema is not None and not settings.optimizer.ema_use and place is not None:
        with ema.as_weights():
            save_weights(built.validation.present_model().network, place / "ema.weights.h5")
    if settings.restore_best:
        best.restore()
    trained = built.validation.present_model()
    files = write_files(trained, built.progress, best, folder)
    chosen = {name: params[name] for name in ("jit", "jit_reason", "steps_per_call")}
    record = Record(
        params,
        timing.metrics() | gpu_peak(strategy),
        files,
        summary={"train": chosen, **validation_facts(dataset)},
    )
    return result_of(trained, built.progress, best, settings, record)


allow_reuse(train, save_trained, restore_trained)


def _refuse_own_steps(network: keras.Model) -> None:
    for name in ("train_step", "test_step"):
        if getattr(type(network), name) is not getattr(keras.Model, name):
            raise UserError(
                f"{type(network).__name__} has a {name} of its own, which the training loop would not call",
                "train=fit, which does; or compute_loss, add_loss and metrics instead of it",
                "train=fit",
            )


def _starting_point(training: Training, plan: Sequence[Phase], place: Path | None) -> tuple[Checkpoint | None, int]:
    """Decides where training starts: returns the checkpoint, if any, and the index of the phase in `plan`.

    The order is important:

    1. Resume: from this run's last intact checkpoint.
    2. Fork: from another run's checkpoint, `start.npz`, adapted to these settings.
    3. Weights, and 4. fresh: from those that the stage `model` has loaded, or drawn from the seed.
    """
    checkpoint = _newest_of_chief(place, training.strategy, training.reporter)
    if checkpoint is None:
        return None, 0
    network = training.model.network
    checkpoint, start = starting_phase(forked(checkpoint, network), plan)
    checkpoint = with_schedule(checkpoint, steps_per_epoch(training.dataset.train, plan[0].settings.batch_size))
    restore_weights(network, checkpoint)  # features are computed with its backbone
    return checkpoint, start


def _begin_phase(
    training: Training, phase: Phase, checkpoint: Checkpoint | None, previous: BuiltPhase | None, cache: Path | None
) -> BuiltPhase:
    """Returns `phase`, built and started from `checkpoint`, else after `previous`, else from the model's weights."""
    strategy = training.strategy
    with training.callbacks.timing.of("build"):
        resumed = progress_of(checkpoint) if checkpoint is not None else Progress()
        phase = replace(phase, settings=with_choices(phase.settings, resumed, strategy))
        built = build_phase(training, phase, resumed, cache)
    start_phase(training, built, checkpoint, previous)
    facts = built.facts
    facts["jit_reason"] = note_jit(built.progress, strategy, facts["jit"], facts["jit_reason"], training.reporter)
    return built


def _run_phase(training: Training, built: BuiltPhase) -> None:
    """Trains until the end of a phase that has been started."""
    with training.callbacks.timing.of("build"):
        settings = replace(built.phase.settings, epochs=built.last_epoch)
        engine = build_engine(training.strategy, built.step, built.dataset, settings, built.progress.step)
    Epochs(training, built, engine).run()
    built.facts["steps_per_call"] = engine.steps_per_call


def _newest_of_chief(place: Path | None, strategy: Strategy, reporter: Reporter) -> Checkpoint | None:
    """Returns the checkpoint to start from, which only the chief reads."""
    checkpoint = newest(place, reporter.warn) if place is not None and is_chief(strategy) else None
    if not has_workers(strategy):
        return checkpoint
    content = from_chief(strategy, to_bytes(checkpoint) if checkpoint is not None else b"")
    return from_bytes(content) if content else None
