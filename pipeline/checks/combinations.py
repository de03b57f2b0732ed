"""Combinations of settings that cannot work, in the order of the checks, and settings that have no effect."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING

from pipeline.checks.conditions import NotConfigured, Settings, is_on_cpu, option_of
from pipeline.config.cluster import JoinedCluster, LocalCluster
from pipeline.config.experiment import Experiment, read
from pipeline.config.schemas import TrackingSettings
from pipeline.system import machine
from pipeline.system.environment import check_keras_file
from stages.errors import UserError
from stages.settings.model import ModelSettings
from stages.settings.strategy import (
    CentralStorageSettings,
    ModelParallelSettings,
    MultiWorkerSettings,
    ParameterServerSettings,
    TpuSettings,
)
from stages.settings.train import AdamSettings

if TYPE_CHECKING:  # a job in a separate process does not compose configurations
    from pipeline.command_line.compose import Composed


@dataclass(frozen=True)
class Rule:
    """A combination of settings, and a function that detects it in an experiment."""

    combination: str
    """The combination as documented: settings are joined by `with`, alternative values are separated by commas."""
    applies: Callable[[Settings], object]
    """Returns a true value if an experiment with these settings has the combination."""
    _: KW_ONLY
    shown: Callable[[Settings], str] | None = None
    """Returns the combination with the values of the experiment, for errors; None if `combination` has no
    alternatives."""
    fix: str
    """The settings to type instead."""

    def find(self, experiment: Experiment) -> str | None:
        """Return the combination with the experiment's values; None if the experiment does not have it."""
        settings = Settings(experiment)
        try:
            if not self.applies(settings):
                return None
            return self.shown(settings) if self.shown else self.combination
        except NotConfigured:
            return None


@dataclass(frozen=True, kw_only=True)
class Refused(Rule):
    """A combination that cannot work."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Unread(Rule):
    """A combination in which some settings have no effect."""

    settings: tuple[str, ...]
    """The names of these settings, as users type them."""

    def is_about(self, name: str) -> bool:
        """Return whether this rule is about the setting `name` or a mapping that contains it."""
        return f"{name}.".startswith(tuple(f"{setting}." for setting in self.settings))


_KERAS = "github.com/keras-team/keras/issues"

WITHOUT_FIT = (
    MultiWorkerSettings,
    ParameterServerSettings,
    CentralStorageSettings,
    ModelParallelSettings,
    TpuSettings,
)
"""Strategies under which Keras' `fit` fails or trains incorrectly."""

REFUSED = (
    Refused(
        "augment.where=model with train=fit",
        lambda s: s.augment.where == "model" and s.is_fit,
        why="Keras' fit runs its own training steps",
        fix="augment.where=input",
    ),
    Refused(
        "augment.where=model with strategy=parameter_server,tpu",
        lambda s: s.augment.where == "model" and isinstance(s.strategy, (ParameterServerSettings, TpuSettings)),
        shown=lambda s: f"augment.where=model with strategy={option_of(s.strategy)}",
        why="the workers' input cannot pass on random numbers, and XLA cannot resample images",
        fix="augment.where=input",
    ),
    Refused(
        "cluster=tf_config,hosts,custom with strategy=* without workers",
        lambda s: isinstance(s.cluster, JoinedCluster) and s.strategy and not s.has_workers,
        shown=lambda s: f"cluster={option_of(s.cluster)} with strategy={option_of(s.strategy)} without workers",
        why="this cluster option only runs the members of a strategy with workers",
        fix="strategy=multi_worker",
    ),
    Refused(
        "deterministic=true with strategy=parameter_server",
        lambda s: s.experiment.deterministic and isinstance(s.strategy, ParameterServerSettings),
        why="the workers' steps have no fixed order",
        fix="deterministic=false",
    ),
    Refused(
        "train=fit with strategy=multi_worker,parameter_server,central_storage,model_parallel,tpu",
        lambda s: s.is_fit and isinstance(s.strategy, WITHOUT_FIT),
        shown=lambda s: f"train=fit with strategy={option_of(s.strategy)}",
        why="Keras' fit only works on one device and on mirrored replicas "
        f"({_KERAS}/20585, {_KERAS}/21054, {_KERAS}/19448)",
        fix="train=loop",
    ),
    Refused(
        "train=fit with optimizer.accumulation>1",
        lambda s: s.is_fit and s.optimizer.accumulation > 1,
        shown=lambda s: f"train=fit with optimizer.accumulation={s.optimizer.accumulation}",
        why="Keras averages over batches, not examples, and fails on replicas",
        fix="train=loop",
    ),
    Refused(
        "train=fit with optimizer.clip_norm with several replicas",
        lambda s: s.is_fit and s.optimizer.clip_norm and s.has_several_replicas,
        shown=lambda s: f"train=fit with optimizer.clip_norm={s.optimizer.clip_norm} with several replicas",
        why="Keras clips gradients before it sums them over the replicas",
        fix="train=loop",
    ),
    Refused(
        "train=fit with train.jit=on with several replicas",
        lambda s: s.is_fit and s.train.jit == "on" and s.has_several_replicas,
        why="compiled code cannot access the variables of other replicas",
        fix="train=loop",
    ),
    Refused(
        "train=fit with precision=mixed,mixed_float16 with several replicas",
        lambda s: s.is_fit and s.precision in ("mixed", "mixed_float16") and s.has_several_replicas,
        shown=lambda s: f"train=fit with precision={s.precision} with several replicas",
        why="Keras checks for float16 overflow before it sums over the replicas, so an overflow in one spreads to all",
        fix="train=loop",
    ),
    Refused(
        "train=fit with precision=float16",
        lambda s: s.is_fit and s.precision == "float16",
        why="Keras only scales the loss in mixed precision",
        fix="train=loop",
    ),
    Refused(
        "train=fit with batches that replicas cannot share equally",
        lambda s: s.is_fit and s.has_unequal_shares,
        why=f"Keras averages the replicas' means, which is wrong if their batches differ in size ({_KERAS}/19891)",
        fix="train=loop",
    ),
    Refused(
        "train.jit=on with strategy=model_parallel",
        lambda s: s.train.jit == "on" and isinstance(s.strategy, ModelParallelSettings),
        why="XLA compiles for a single device",
        fix="train.jit=off",
    ),
    Refused(
        "optimizer.ema_momentum with precision=bfloat16,float16",
        lambda s: s.optimizer.ema_momentum and s.precision in ("bfloat16", "float16"),
        shown=lambda s: f"optimizer.ema_momentum={s.optimizer.ema_momentum} with precision={s.precision}",
        why="a moving average in so low a precision stops changing",
        fix="precision=mixed",
    ),
    Refused(
        "model.frozen=true without a backbone",
        lambda s: s.model.frozen and not s.may_have_backbone,
        why="the network has no layer named backbone",
        fix="model.frozen=false",
    ),
    Refused(
        "model.weights=imagenet without a backbone",
        lambda s: s.model.weights == "imagenet" and not s.may_have_backbone,
        why="ImageNet weights belong to a backbone of keras.applications",
        fix="model.weights=none",
    ),
    Refused(
        "model.weights=runs:/*,models:/* with tracking=off",
        lambda s: s.model.is_tracked and s.is_untracked,
        shown=lambda s: f"model.weights={s.model.weights} with tracking=off",
        why="such weights are looked up in MLflow",
        fix="tracking=local",
    ),
    Refused(
        "model.frozen=true with strategy=model_parallel",
        lambda s: s.model.frozen and isinstance(s.strategy, ModelParallelSettings),
        why="layers are distributed as a whole, and a backbone is a single layer",
        fix="strategy=one_device",
    ),
    Refused(
        "train.fine_tune_epochs without model.frozen",
        lambda s: s.train.fine_tune_epochs and not s.model.frozen,
        shown=lambda s: f"train.fine_tune_epochs={s.train.fine_tune_epochs} with model.frozen=false",
        why="there is no frozen layer to unfreeze",
        fix="model.frozen=true",
    ),
    Refused(
        "train.fine_tune_epochs with strategy=parameter_server",
        lambda s: s.train.fine_tune_epochs and isinstance(s.strategy, ParameterServerSettings),
        shown=lambda s: f"train.fine_tune_epochs={s.train.fine_tune_epochs} with strategy=parameter_server",
        why="the parameter servers hold the variables of a single optimizer",
        fix="strategy=one_device",
    ),
    Refused(
        "precision=mixed_float16,float16,float64 with strategy=tpu",
        lambda s: s.precision in ("mixed_float16", "float16", "float64") and isinstance(s.strategy, TpuSettings),
        shown=lambda s: f"precision={s.precision} with strategy=tpu",
        why="a TPU only computes in float32 and bfloat16",
        fix="precision=mixed",
    ),
    Refused(
        "precision=bfloat16 with strategy=multi_worker",
        lambda s: s.precision == "bfloat16" and isinstance(s.strategy, MultiWorkerSettings),
        why="TensorFlow's collectives cannot send bfloat16 variables",
        fix="precision=mixed_bfloat16",
    ),
    Refused(
        "precision=bfloat16,float16 with optimizer=adam,adamw",
        lambda s: s.precision in ("bfloat16", "float16") and isinstance(s.optimizer, AdamSettings),
        shown=lambda s: f"precision={s.precision} with optimizer={option_of(s.optimizer)}",
        why="beta_2=0.999 is rounded to 1, or squares of small gradients to 0, so the model learns nothing",
        fix="precision=mixed_bfloat16",
    ),
    Refused(
        "precision=mixed_bfloat16,bfloat16 with a GPU of compute capability below 8.0",
        lambda s: s.precision in ("mixed_bfloat16", "bfloat16") and s.has_gpu_without_bfloat16,
        shown=lambda s: f"precision={s.precision} with a GPU of compute capability below 8.0",
        why="the GPU cannot compute in bfloat16",
        fix="precision=mixed_float16",
    ),
    Refused(
        "strategy=tpu without a TPU in this machine or a TPU name",
        lambda s: isinstance(s.strategy, TpuSettings) and not s.has_tpu,
        why="it requires a TPU",
        fix="strategy=mirrored",
    ),
    Refused(
        "export.register with tracking=off",
        lambda s: s.export.register and s.is_untracked,
        shown=lambda s: f"export.register={s.export.register} with tracking=off",
        why="registering a model requires MLflow",
        fix="tracking=local",
    ),
    Refused(
        "export.register without a SavedModel",
        lambda s: s.export.register and not s.exports_saved_model,
        shown=lambda s: f"export.register={s.export.register} without a SavedModel",
        why="only a SavedModel can be registered in MLflow",
        fix="export=saved_model",
    ),
    Refused(
        "export.alias without export.register",
        lambda s: s.export.alias and not s.export.register,
        shown=lambda s: f"export.alias={s.export.alias} with export.register=null",
        why="an alias belongs to a registered model",
        fix="export.register=my_model",
    ),
    Refused(
        "export.alias with export.promote_if=better,higher without predictions",
        lambda s: s.export.alias and s.export.promote_if in ("better", "higher") and not s.has_predictions,
        shown=lambda s: (
            f"export.alias={s.export.alias} with export.promote_if={s.export.promote_if} without predictions"
        ),
        why="models are compared by the predictions that evaluate saves",
        fix="evaluate.predictions=true",
    ),
)
"""Combinations that cannot work. The first one that an experiment has is reported."""


UNREAD = (
    Unread(
        "tracking=off",
        lambda s: s.is_untracked,
        settings=tuple(f"tracking.{field.name}" for field in fields(TrackingSettings) if field.name != "kind"),
        fix="tracking=local",
    ),
    Unread(
        "tracking=local",
        lambda s: s.experiment.tracking.kind == "local",
        settings=("tracking.uri",),
        fix="tracking=server",
    ),
    Unread(
        "cluster=local without workers",
        lambda s: isinstance(s.cluster, LocalCluster) and not s.has_workers,
        settings=("cluster.restarts",),
        fix="strategy=multi_worker",
    ),
    Unread(
        "cluster=tf_config,hosts,custom",
        lambda s: isinstance(s.cluster, JoinedCluster),
        shown=lambda s: f"cluster={option_of(s.cluster)}",
        settings=("strategy.workers", "strategy.servers"),
        fix="cluster=local",
    ),
    Unread(
        "strategy.devices",
        lambda s: s.devices.devices,
        shown=lambda s: f"strategy.devices={s.devices.devices}",
        settings=("strategy.cpu_replicas",),
        fix="strategy.devices=[]",
    ),
    Unread(
        "train.fine_tune_epochs=0",
        lambda s: s.train.fine_tune_epochs == 0,
        settings=("train.fine_tune_layers", "train.fine_tune_rate"),
        fix="train.fine_tune_epochs=5",
    ),
    Unread("train=fit", lambda s: s.is_fit, settings=("train.cache_features",), fix="train=loop"),
    Unread(
        "augment.rand_augment=0",
        lambda s: s.augment.rand_augment == 0,
        settings=("augment.magnitude",),
        fix="augment.rand_augment=2",
    ),
    Unread(
        "without image augmentation",
        lambda s: not s.augment.changes and not s.augment.mixes,
        settings=("augment.where",),
        fix="augment=flip",
    ),
    Unread(
        "export.alias=null",
        lambda s: s.export.alias is None,
        settings=("export.promote_if",),
        fix="export.alias=champion",
    ),
    Unread(
        "precision=float64",
        lambda s: s.precision == "float64",
        settings=("precision.tf32",),
        fix="precision=float32",
    ),
    Unread("data.size=null", lambda s: s.images.size is None, settings=("data.resize",), fix="data.size=160"),
)
"""Combinations in which some settings have no effect. The settings in `fix` give them an effect."""


def read_composed(composed: "Composed") -> Experiment:
    """Return the experiment of a job; refuse the first typed setting that has no effect in it.

    Only typed settings are checked, because a setting in an experiment's file may lose its effect by another choice.
    """
    check_keras_file()
    experiment = read(composed.document, composed.choices, composed.config_dirs, composed.overrides)
    for name in composed.typed:
        for rule in UNREAD:
            if rule.is_about(name) and (combination := rule.find(experiment)):
                shown = combination if combination.startswith("without ") else f"with {combination}"
                raise UserError(f"{name} has no effect {shown}", "", rule.fix)
    return experiment


def advice(experiment: Experiment) -> Iterator[str]:
    """Yield a line if the precision works on the available devices but is not faster."""
    model, strategy = experiment.of("model", ModelSettings), experiment.settings.get("strategy")
    name = model.precision.lowest if model else "float32"
    kind = "fp16" if name in ("mixed_float16", "float16") else "bf16"
    has_instructions = {f"avx512_{kind}", f"amx_{kind}"} & machine.cpu_flags()
    is_elsewhere = isinstance(strategy, TpuSettings) or (machine.gpus() and not is_on_cpu(experiment))
    if name not in ("float32", "float64") and not is_elsewhere and not has_instructions:
        yield f"precision={name} is not faster than float32 on this CPU, which lacks the instructions for it"
