"""The `train` stage: the training loop, with validation, callbacks and the best weights."""

from pathlib import Path

import keras

from stages.callbacks.best_weights import save_weights
from stages.callbacks.build import build_callbacks
from stages.callbacks.timing import Timing
from stages.checkpoints.files import Checkpoints
from stages.checkpoints.saved import restore_trained, save_trained
from stages.distribution.collectives import is_chief
from stages.errors import UserError
from stages.evaluation.test_set import validation_facts
from stages.networks.batch_norm import normalizes_by_batch
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Record, Strategy, Trained
from stages.reuse import allow_reuse
from stages.settings.train import TrainSettings
from stages.training.memory import gpu_peak
from stages.training.outcome import result_of, write_files
from stages.training.phase import Phase
from stages.training.session import Session, plan_phases, starting_point


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


allow_reuse(train, save_trained, restore_trained)


def _refuse_own_steps(network: keras.Model) -> None:
    for name in ("train_step", "test_step"):
        if getattr(type(network), name) is not getattr(keras.Model, name):
            raise UserError(
                f"{type(network).__name__} has a {name} of its own, which the training loop would not call",
                "train=fit, which does; or compute_loss, add_loss and metrics instead of it",
                "train=fit",
            )
