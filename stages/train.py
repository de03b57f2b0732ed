"""The `train` stage: the training loop, with validation, callbacks and the best weights."""

from dataclasses import replace
from pathlib import Path

from stages.data.batches import steps_per_epoch
from stages.distribution.collectives import from_chief, has_workers, is_chief
from stages.optimization.gradients import Gradients
from stages.optimization.jit import choose_jit
from stages.optimization.losses import cross_entropy
from stages.optimization.optimizers import build_optimizer, learning_rate
from stages.optimization.train_step import Step
from stages.reporter import Reporter, Silent
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.train import TrainSettings
from stages.training.callbacks import Callbacks, build_callbacks, save_weights
from stages.training.checkpoints import Checkpoint, Checkpoints, from_bytes, newest, to_bytes
from stages.training.class_weights import class_weights
from stages.training.epochs import Epochs
from stages.training.forks import forked, with_schedule
from stages.training.memory import check_memory
from stages.training.outcome import finished
from stages.training.phases import Phase, entered, phases
from stages.training.state import progress_of, put_back_weights
from stages.training.timing import Timing
from stages.transfer.backbone import is_frozen
from stages.transfer.feature_cache import on_features


def train(
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    settings: TrainSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Trained:
    """Trains `model` in place and returns it with the best epoch's weights (or the last's, by `restore_best`).

    Under a parameter-server strategy the result is a copy of it on one device. Where settings fine-tune, a second phase
    begins with that result of the first; epochs, history and the best weights are those of both.

    Args:
        reporter: is told every epoch's metrics, and the progress within.
        folder: the run's; takes checkpoints, `checkpoints/best.weights.h5`, `checkpoints/averages.weights.h5` where
            averages are kept and not used, and `plots/history.png`. Training goes on from the last whole checkpoint
            that is there. None: no files.
        cache: what runs share; takes the features of a frozen backbone.

    Raises:
        UserError: where the replicas cannot share the batch, the loss is no longer finite, the checkpoint belongs to
            another training, or one cannot be written.
    """
    timing = Timing()
    settings.check_share(strategy.in_sync)
    settings = replace(settings, class_weights=class_weights(settings.class_weights, dataset))
    reporter = reporter or Silent()
    parts = phases(model.network, settings)
    best, callbacks = build_callbacks(settings, reporter, timing)
    place = folder / "checkpoints" if folder is not None else None
    checkpoints = Checkpoints(place if is_chief(strategy) else None, settings, reporter.is_secret)
    found, first = _found(place, strategy, reporter), 0
    if found is not None:
        found, first = entered(forked(found, model.network), parts)
        found = with_schedule(found, steps_per_epoch(dataset.train, settings.batch_size))
        put_back_weights(model.network, found)  # features are those of its backbone
    for phase in parts[1:]:  # before the first begins, whether the next one fits
        with timing.of("build"), phase.tried(model.network):
            check_memory(model, dataset, strategy, phase.settings)
    params: dict[str, object] = {}
    before: Epochs | None = None
    for phase in parts[first:]:
        if before is not None and settings.restore_best:
            best.restore()
        is_over = found is not None and progress_of(found).finished
        features = None if is_over or phase.layers else (cache,)
        with timing.of("build"):
            shift = progress_of(found).shift if found is not None else 0
            epochs, facts = _prepare(phase, model, dataset, strategy, callbacks, reporter, features, shift)
        waiting, found = [found], None  # a checkpoint may be large: nobody holds it once it is put back
        epochs.run(reporter, checkpoints, waiting.pop(), before)
        params |= {**facts, "steps_per_call": epochs.steps_per_call}
        before = epochs
    assert before is not None
    reporter.doing("writing the best weights")
    averages = before.averages
    if averages is not None and not settings.optimizer.ema_use and place is not None:
        with averages.used():
            save_weights(before.take_over().network, place / "averages.weights.h5")
    if settings.restore_best:
        best.restore()
    return finished(before.take_over(), before.progress, best, settings, params, folder, timing)


def _prepare(
    phase: Phase,
    model: Model,
    dataset: Dataset,
    strategy: Strategy,
    callbacks: Callbacks,
    reporter: Reporter,
    features: tuple[Path | None] | None,
    shift: int = 0,
) -> tuple[Epochs, dict[str, object]]:
    """Returns the epochs of `phase` with an optimizer of their own, and what to record of them.

    Args:
        features: where those of a frozen backbone are kept; None: the phase does without.
        shift: steps of the learning-rate schedule that are over.
    """
    settings, number = phase.settings, phase.index + 1
    trained, kept = phase.begin(model.network)
    if phase.index:
        reporter.say(f"phase {number} begins: {trained:,} weights are trained, and {kept:,} stay as they are")
    loss = cross_entropy(model.outputs, settings.label_smoothing)
    with strategy.distribution.scope():
        per_epoch = steps_per_epoch(dataset.train, settings.batch_size)
        peak = settings.optimizer.learning_rate
        rate = learning_rate(peak, settings.schedule, per_epoch, settings.epochs, shift, policy=model.policy)
        optimizer = build_optimizer(settings.optimizer, rate, model.policy)
        # For callbacks, which look for `model.optimizer`, and for a `compute_loss` of the network's own.
        for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
            network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
    callbacks.set_model(model.network)
    taught, material = model, dataset
    facts: dict[str, object] = {}
    if phase.later or phase.index or is_frozen(model.network):
        facts = {f"phase_{number}_trained_parameters": trained, f"phase_{number}_kept_parameters": kept}
    if features is not None and is_frozen(model.network):
        with callbacks.timing.of("features"):
            taught, material, facts["features"] = on_features(model, dataset, strategy, settings, reporter, features[0])
    facts |= check_memory(taught, material, strategy, settings)

    def gradients(compiled: bool) -> Gradients:
        return Gradients(taught, loss, settings, strategy.in_sync, compiled)

    jit, why = choose_jit(settings, strategy, taught, material, gradients)
    if settings.jit != "auto":
        reporter.say(f"jit {'on' if jit else 'off'}: {why}")
    step = Step(strategy, taught, optimizer, settings, jit)
    epochs = Epochs(model, taught, material, strategy, phase, step, rate, callbacks)
    return epochs, {**facts, "jit": "on" if jit else "off", "jit_reason": why}


def _found(place: Path | None, strategy: Strategy, reporter: Reporter) -> Checkpoint | None:
    """Returns the checkpoint to go on from, of which only the chief's folder is asked."""
    own = newest(place, reporter.warn) if place is not None and is_chief(strategy) else None
    if not has_workers(strategy):
        return own
    content = from_chief(strategy, to_bytes(own) if own is not None else b"")
    return from_bytes(content) if content else None
