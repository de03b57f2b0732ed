"""Phases of a training: built, and started from a checkpoint, the previous phase, or the model's own weights."""

from dataclasses import dataclass, field
from pathlib import Path

from stages.callbacks.build import prepare_callbacks
from stages.callbacks.callback_list import Callbacks
from stages.checkpoints.files import Checkpoint, Checkpoints
from stages.checkpoints.forks import is_fork, report_fork
from stages.checkpoints.progress import Progress
from stages.checkpoints.state import State
from stages.data.batches import steps_per_epoch
from stages.optimization.gradients import Gradients
from stages.optimization.jit import choose_jit
from stages.optimization.losses import cross_entropy
from stages.optimization.optimizers import Rate, build_optimizer, learning_rate
from stages.optimization.train_step import Step
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy
from stages.training.epoch_metrics import report_completed
from stages.training.memory import warn_of_memory
from stages.training.phases import Phase
from stages.training.validation import Validation
from stages.transfer.backbone import is_frozen
from stages.transfer.feature_cache import on_features


@dataclass(frozen=True)
class Training:
    """Common parts of all phases of a training. model: the whole one, which callbacks see and checkpoints hold."""

    model: Model
    dataset: Dataset
    strategy: Strategy
    callbacks: Callbacks
    checkpoints: Checkpoints
    reporter: Reporter


@dataclass
class BuiltPhase:
    """A phase with its optimizer.

    dataset: of its steps: the training's own, or features.
    facts: parameters to record.
    progress: set once it has been started.
    """

    phase: Phase
    dataset: Dataset
    step: Step
    rate: Rate
    state: State
    validation: Validation
    facts: dict[str, object]
    on_features: bool
    progress: Progress = field(default_factory=Progress)

    @property
    def last_epoch(self) -> int:
        """Epochs completed at the phase's end, including those of earlier phases."""
        return self.progress.began + self.phase.settings.epochs


def build_phase(training: Training, phase: Phase, resumed: Progress, cache: Path | None) -> BuiltPhase:
    """Builds the step of `phase`, with an optimizer of its own.

    Args:
        resumed: the progress of the phase so far.
        cache: the folder that runs share; takes the features of a frozen backbone.
    """
    model = training.model
    strategy = training.strategy
    reporter = training.reporter
    callbacks = training.callbacks
    settings = phase.settings
    number = phase.index + 1
    trained, frozen = phase.set_trainable(model.network)
    if phase.index:
        reporter.log(f"phase {number}: {trained:,} weights are trained, {frozen:,} are frozen")
    loss = cross_entropy(model.outputs, settings.label_smoothing)
    with strategy.distribution.scope():
        per_epoch = steps_per_epoch(training.dataset.train, settings.batch_size)
        peak = settings.optimizer.learning_rate
        rate = learning_rate(peak, settings.schedule, per_epoch, settings.epochs, resumed.shift, policy=model.policy)
        optimizer = build_optimizer(settings.optimizer, rate, model.policy)
        # For callbacks, which use `model.optimizer`, and for the network's own `compute_loss`.
        for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
            network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
    callbacks.set_model(model.network)
    facts: dict[str, object] = {}
    if phase.later or phase.index or is_frozen(model.network):
        facts = {f"phase_{number}_trained_parameters": trained, f"phase_{number}_kept_parameters": frozen}
    trainable = model
    dataset = training.dataset
    if is_frozen(model.network) and not resumed.finished:
        with callbacks.timing.of("features"):
            trainable, dataset, facts["features"] = on_features(model, dataset, strategy, settings, reporter, cache)

    facts |= warn_of_memory(trainable, strategy, settings, reporter)

    def build(jit: bool) -> Gradients:
        return Gradients(trainable, loss, settings, strategy.in_sync, jit)

    gradients, jit, reason = choose_jit(settings, strategy, trainable, dataset, build)
    facts |= {"jit": "on" if jit else "off", "jit_reason": reason}
    step = Step(strategy, gradients, optimizer, settings, len(dataset.train))
    if step.not_decayed:
        facts["weight_decay_excludes"] = step.not_decayed
        reporter.log(f"weight decay leaves out {step.not_decayed}")
    state = State(strategy, model, dataset, settings, callbacks.callbacks, step)
    validation = Validation(model, trainable, dataset, strategy, settings, step)
    return BuiltPhase(phase, dataset, step, rate, state, validation, facts, on_features=trainable is not model)


def start_phase(
    training: Training, built: BuiltPhase, checkpoint: Checkpoint | None, previous: BuiltPhase | None
) -> None:
    """Starts `built` from `checkpoint`, else after the phase `previous`, else from the model's weights."""
    network = training.model.network
    callbacks = training.callbacks
    reporter = training.reporter
    settings = built.phase.settings
    network.stop_training = False
    prepare_callbacks(callbacks, settings, checkpoint is not None or previous is not None)
    callbacks.on_train_begin()
    built.state.begin(previous.state if previous is not None else None)
    if previous is not None:
        built.progress = previous.progress
        built.progress.begin_phase(built.phase.index, steps_per_epoch(built.dataset.train, settings.batch_size))
        if built.step.loss_scale is not None and previous.step.loss_scale is not None:
            built.step.loss_scale.continue_from(previous.step.loss_scale)
    if checkpoint is not None:
        progress = built.progress = built.state.restore(checkpoint)
        callbacks.added = dict(progress.added)
        callbacks.outside = dict(progress.outside) | callbacks.outside
        network.stop_training = progress.stopping
        if not is_fork(checkpoint):
            reporter.resumed(progress.step)
        report_completed(progress, built.state.notes, built.last_epoch, reporter)
        if is_fork(checkpoint):
            with callbacks.timing.of("validation"), built.validation.result_weights():
                scores = built.validation.score()
            report_fork(checkpoint.facts, progress, scores, reporter)
    built.progress.clock.unit = "features" if built.on_features else "images"
