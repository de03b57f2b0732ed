"""A phase of a training: epochs with the same trained weights and one optimizer."""

from dataclasses import replace

from stages.callbacks.build import prepare_callbacks
from stages.checkpoints.files import Checkpoint
from stages.checkpoints.forks import report_fork
from stages.checkpoints.progress import Progress
from stages.checkpoints.state import State, progress_of
from stages.data.batches import steps_per_epoch
from stages.data.examples import spec_of
from stages.optimization.gradients import Gradients
from stages.optimization.jit import choose_jit
from stages.optimization.losses import cross_entropy
from stages.optimization.optimizers import build_optimizer, learning_rate
from stages.optimization.train_step import Step
from stages.training.loop import Loop
from stages.training.memory import warn_of_memory
from stages.training.outcome import report_completed
from stages.training.parameter_server import Coordinated
from stages.training.session import Plan, Session
from stages.training.validation import Validation
from stages.transfer.backbone import is_frozen
from stages.transfer.feature_cache import on_features


class Phase:
    """A phase, built and started from `checkpoint`, else after `previous`, else from the model's own weights.

    dataset: of its steps: the training's own, or features of a frozen backbone.
    loop: takes the steps, several in a call.
    last_epoch: epochs completed at its end, with those of earlier phases; all_epochs: those of later ones, too.
    """

    def __init__(
        self, session: Session, plan: Plan, checkpoint: Checkpoint | None, previous: "Phase | None" = None
    ) -> None:
        self.session = session
        self.plan = plan
        with session.timing.of("build"):
            self._build(progress_of(checkpoint) if checkpoint is not None else Progress())
        self.progress = Progress()
        self._start(checkpoint, previous)
        self.last_epoch = self.progress.began + plan.settings.epochs
        self.all_epochs = self.last_epoch + plan.later
        with session.timing.of("build"):
            settings = replace(self.settings, epochs=self.last_epoch)
            given = (session.strategy, self.step, self.dataset, settings)
            is_coordinated = session.strategy.coordinator is not None
            self.loop = Coordinated(*given) if is_coordinated else Loop(*given, self.progress.step)

    @property
    def params(self) -> dict[str, object]:
        """Parameters to record, once it is trained."""
        number = self.plan.index + 1
        params: dict[str, object] = {**self._memory, "jit": self._jit, "jit_reason": self._jit_reason}
        params["steps_per_call"] = self.loop.steps_per_call
        if self.plan.is_one_of_several or self._features is not None:
            params |= {
                f"phase_{number}_trained_parameters": self._trained,
                f"phase_{number}_kept_parameters": self._kept,
            }
        if self._features is not None:
            params["features"] = self._features
        if self.step.not_decayed:
            params["weight_decay_excludes"] = self.step.not_decayed
        return params

    def _build(self, resumed: Progress) -> None:
        """Build the step with an optimizer of its own. resumed: the progress of the phase so far."""
        session = self.session
        model, dataset, strategy, reporter = session.model, session.dataset, session.strategy, session.reporter
        self.settings = settings = self.plan.settings
        self._trained, self._kept = self.plan.set_trainable(model.network)
        if self.plan.index:
            number = self.plan.index + 1
            reporter.log(f"phase {number}: {self._trained:,} weights are trained, {self._kept:,} are frozen")
        loss = cross_entropy(model.outputs, settings.label_smoothing)
        peak, per_epoch = settings.optimizer.learning_rate, steps_per_epoch(dataset.train, settings.batch_size)
        with strategy.distribution.scope():
            self.rate = learning_rate(
                peak, settings.schedule, per_epoch, settings.epochs, resumed.shift, policy=model.policy
            )
            optimizer = build_optimizer(settings.optimizer, self.rate, model.policy)
            # For callbacks, which use `model.optimizer`, and for the network's own `compute_loss`.
            for network in (model.network, model.network.core) if model.has_own_loss else (model.network,):
                network.compile(optimizer, loss, jit_compile=False, auto_scale_loss=False)
        session.callbacks.set_model(model.network)
        trainable, self.dataset, self._features = model, dataset, None
        if is_frozen(model.network):
            self._features = "off: the training is finished"
            if not resumed.finished:
                with session.timing.of("features"):
                    trainable, self.dataset, self._features = on_features(
                        model, dataset, strategy, settings, reporter, session.cache
                    )
        self.is_on_features = trainable is not model
        self._memory = warn_of_memory(trainable, strategy, settings, reporter)

        def build(jit: bool) -> Gradients:
            return Gradients(trainable, loss, settings, spec_of(self.dataset), strategy.in_sync, jit)

        gradients, jit, reason = choose_jit(settings.jit, strategy, trainable, self.dataset, build)
        self._jit, self._jit_reason = "on" if jit else "off", reason
        if reason != "as asked":
            reporter.log(f"train.jit={self._jit}: {reason}")
        self.step = Step(strategy, gradients, optimizer, settings, len(dataset.train))
        if self.step.not_decayed:
            reporter.log(f"weight decay leaves out {self.step.not_decayed}")
        self.state = State(strategy, model, self.dataset, settings, session.callbacks.callbacks, self.step)
        self.validation = Validation(model, trainable, self.dataset, strategy, settings, self.step)

    def _start(self, checkpoint: Checkpoint | None, previous: "Phase | None") -> None:
        session = self.session
        network, callbacks = session.model.network, session.callbacks
        network.stop_training = False
        prepare_callbacks(callbacks, self.settings, checkpoint is not None or previous is not None)
        with session.timing.of("callbacks"):
            callbacks.on_train_begin()
        self.state.begin(previous.state if previous is not None else None)
        if previous is not None:
            self.progress = previous.progress
            self.progress.begin_phase(self.plan.index, steps_per_epoch(self.dataset.train, self.settings.batch_size))
            if self.step.loss_scale is not None and previous.step.loss_scale is not None:
                self.step.loss_scale.continue_from(previous.step.loss_scale)
        if checkpoint is not None:
            self.progress = progress = self.state.restore(checkpoint)
            network.stop_training = progress.stopping
            if not checkpoint.is_fork:
                session.reporter.resumed(progress.step)
            epochs = progress.began + self.settings.epochs
            report_completed(progress, self.state.notes, epochs, session.reporter)
            if checkpoint.is_fork:
                with session.timing.of("validation"), self.validation.result_weights():
                    scores = self.validation.score()
                report_fork(checkpoint.facts, progress, scores, session.reporter)
        self.progress.clock.unit = "features" if self.is_on_features else "images"
