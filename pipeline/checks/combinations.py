"""Combinations of settings that cannot work, in the order in which they are checked, and settings without effect.

A rule is written as it is typed: `train=fit with strategy=tpu`. Terms stand between `with` and `without`. A term is a
setting that is on (`optimizer.clip_norm`), has one of several values (`train.jit=on,measure`) or exceeds one
(`optimizer.accumulation>1`); or a fact of `FACTS` (`several replicas`).
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.experiment import Experiment, read
from pipeline.config.schemas import SCHEMAS
from pipeline.system import machine
from pipeline.system.environment import check_keras_file
from stages.errors import UserError
from stages.settings.data import DigitsSettings
from stages.settings.model import ApplicationSettings, KerasHubSettings, ModelSettings
from stages.settings.strategy import CentralStorageSettings, MirroredSettings, MultiWorkerSettings, TpuSettings
from stages.settings.train import TrainSettings

if TYPE_CHECKING:  # a job in a process of its own composes nothing
    from pipeline.command_line.compose import Composed


def expected_replicas(experiment: Experiment) -> int | None:
    """Return how many replicas share a batch; None where they are unknown without TensorFlow."""
    strategy = experiment.settings.get("strategy")
    gpus = len(machine.gpus())
    if isinstance(strategy, (MirroredSettings, CentralStorageSettings)):
        return len(strategy.devices) or gpus or strategy.cpu_replicas
    if isinstance(strategy, MultiWorkerSettings):
        return experiment.cluster.replicas(strategy.workers, gpus)
    return None if strategy is None or _kind("strategy", strategy) in ("", "tpu") else 1


def is_on_cpu(experiment: Experiment) -> bool:
    """Return whether the strategy names CPUs, on a machine that may have GPUs."""
    strategy = experiment.settings.get("strategy")
    devices = [getattr(strategy, "device", None), *getattr(strategy, "devices", [])]
    return any("cpu" in str(device).lower() for device in devices)


def _shares_unequally(experiment: Experiment) -> bool:
    train, data = experiment.of("train", TrainSettings), experiment.of("load", DigitsSettings)
    replicas, examples = expected_replicas(experiment) or 1, data.train_examples() if data else 0
    return train is not None and any(size % replicas for size in (train.batch_size, examples % train.batch_size))


def _has_backbone(experiment: Experiment) -> bool:
    """Return whether the network may have a layer `backbone`: this project's others have none."""
    model = experiment.of("model", ModelSettings)
    network: Any = model.network if model else None
    is_ours = type(network) in SCHEMAS["network"].values() and network._target_ == type(network)._target_
    return not is_ours or isinstance(network, (ApplicationSettings, KerasHubSettings))


def _has_tpu(experiment: Experiment) -> bool:
    strategy = experiment.of("strategy", TpuSettings)
    name = (strategy.name if strategy else None) or os.environ.get("TPU_NAME", "local")
    return name != "local" or any([*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")])


FACTS: Mapping[str, Callable[[Experiment], object]] = {
    "a backbone": _has_backbone,
    "a TPU in this machine or a TPU name": _has_tpu,
    "a GPU of compute capability below 8.0": lambda experiment: (
        any(gpu.compute_capability < (8, 0) for gpu in machine.gpus()) and not is_on_cpu(experiment)
    ),
    "several replicas": lambda experiment: (expected_replicas(experiment) or 1) > 1,
    "batches that replicas cannot share equally": _shares_unequally,
    "workers": lambda experiment: experiment.members,
    "image augmentation": lambda one: True in (_setting(one, "augment.changes"), _setting(one, "augment.mixes")),
    "a SavedModel": lambda experiment: "saved_model" in (_setting(experiment, "export.formats") or ["saved_model"]),
    "predictions": lambda experiment: _setting(experiment, "evaluate.predictions") is True,
}
"""Conditions that no setting says, by the words of rules."""


def _kind(group: str, settings: Any) -> str:
    """Return the schema of an option, such as `mirrored`, from which the user's own may start, too."""
    return next((name for name, schema in SCHEMAS[group].items() if type(settings) is schema), "")


_ABSENT = object()
"""A setting of a stage that is left out, or is the user's own code: no term holds of it."""


def _part(experiment: Experiment, group: str) -> Any:
    """Return the settings of a group, None without them."""
    if group in ("optimizer", "schedule", "precision"):
        return getattr(_part(experiment, "model" if group == "precision" else "train"), group, None)
    stage = {group: stage for stage, group in experiment.groups.items()}.get(group, group)
    part = experiment.settings.get(stage, getattr(experiment, group, None))
    return None if isinstance(part, Mapping) else part


def _setting(experiment: Experiment, name: str) -> Any:
    group, _, field = name.partition(".")
    return getattr(_part(experiment, group), field, _ABSENT)


def _value(experiment: Experiment, name: str) -> Any:
    """Return the value of a setting, a fact, or what a group's option is made of."""
    if name in FACTS:
        return FACTS[name](experiment)
    part = _part(experiment, name)
    if "." in name or part is None:
        return _setting(experiment, name)
    if name in SCHEMAS:
        return getattr(part, {"precision": "lowest", "tracking": "kind"}.get(name, ""), _kind(name, part))
    return part


def found(combination: str, experiment: Experiment) -> str | None:
    """Return a combination with the experiment's own values; None where it does not have it."""
    words = re.split(r"\b(with|without) ", f"with {combination}")[1:]
    shown = []
    for word, term in zip(words[::2], words[1::2], strict=True):
        name, relation, wanted = re.findall(r"([^=>]+)([=>]?)(.*)", term.strip())[0]
        value = _value(experiment, name)
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if relation == ">":
            holds = isinstance(value, int) and value > int(wanted)
        else:
            holds = any(fnmatchcase(text, each) for each in wanted.split(",")) if relation else bool(value)
        if value is _ABSENT or holds == (word == "without"):
            return None
        shown.append(f"{word} {name}" if name in FACTS else f"with {name}={text}")
    return " ".join(shown)


_KERAS = "github.com/keras-team/keras/issues"

COMBINATIONS = (
    ("augment.where=model with train=fit", "Keras' fit runs its own training steps", "augment.where=input"),
    ("augment.where=model with strategy=parameter_server,tpu",
     "the workers' input cannot pass on random numbers, and XLA cannot resample images", "augment.where=input"),
    ("cluster=tf_config,hosts,custom with strategy=* without workers",
     "this engine only runs the members of a strategy with workers", "strategy=multi_worker"),
    ("deterministic=true with strategy=parameter_server",
     "the workers' steps have no fixed order", "deterministic=false"),
    ("train=fit with strategy=multi_worker,parameter_server,central_storage,model_parallel,tpu",
     "Keras' fit only works on one device and on mirrored replicas "
     f"({_KERAS}/20585, {_KERAS}/21054, {_KERAS}/19448)",
     "train=loop"),
    ("train=fit with optimizer.accumulation>1",
     "Keras averages over batches, not examples, and fails on replicas", "train=loop"),
    ("train=fit with optimizer.clip_norm with several replicas",
     "Keras clips gradients before it sums them over the replicas", "train=loop"),
    ("train=fit with train.jit=on with several replicas",
     "compiled code cannot access the variables of other replicas", "train=loop"),
    ("train=fit with precision=mixed,mixed_float16 with several replicas",
     "Keras checks for float16 overflow before it sums over the replicas, so an overflow in one spreads to all",
     "train=loop"),
    ("train=fit with precision=float16", "Keras only scales the loss in mixed precision", "train=loop"),
    ("train=fit with batches that replicas cannot share equally",
     f"Keras averages the replicas' means, which is wrong if their batches differ in size ({_KERAS}/19891)",
     "train=loop"),
    ("train.jit=on with strategy=model_parallel", "XLA compiles for a single device", "train.jit=off"),
    ("optimizer.ema_momentum with precision=bfloat16,float16",
     "a moving average in so low a precision stops changing", "precision=mixed"),
    ("model.frozen=true without a backbone", "the network has no layer named backbone", "model.frozen=false"),
    ("model.weights=imagenet without a backbone",
     "ImageNet weights belong to a backbone of keras.applications", "model.weights=none"),
    ("model.weights=runs:/*,models:/* with tracking=off", "such weights are looked up in MLflow", "tracking=local"),
    ("model.frozen=true with strategy=model_parallel",
     "layers are distributed as a whole, and a backbone is a single layer", "strategy=one_device"),
    ("train.fine_tune_epochs without model.frozen", "there is no frozen layer to unfreeze", "model.frozen=true"),
    ("train.fine_tune_epochs with strategy=parameter_server",
     "the parameter servers hold the variables of a single optimizer", "strategy=one_device"),
    ("precision=mixed_float16,float16,float64 with strategy=tpu",
     "a TPU only computes in float32 and bfloat16", "precision=mixed"),
    ("precision=bfloat16 with strategy=multi_worker",
     "TensorFlow's collectives cannot send bfloat16 variables", "precision=mixed_bfloat16"),
    ("precision=bfloat16,float16 with optimizer=adam,adamw",
     "beta_2=0.999 is rounded to 1, or squares of small gradients to 0, so the model learns nothing",
     "precision=mixed_bfloat16"),
    ("precision=mixed_bfloat16,bfloat16 with a GPU of compute capability below 8.0",
     "the GPU cannot compute in bfloat16", "precision=mixed_float16"),
    ("strategy=tpu without a TPU in this machine or a TPU name", "it requires a TPU", "strategy=mirrored"),
    ("export.register with tracking=off", "registering a model requires MLflow", "tracking=local"),
    ("export.register without a SavedModel", "only a SavedModel can be registered in MLflow", "export=saved_model"),
    ("export.alias without export.register", "an alias belongs to a registered model", "export.register=my_model"),
    ("export.alias with export.promote_if=better,higher without predictions",
     "models are compared by the predictions that evaluate saves", "evaluate.predictions=true"),
)  # fmt: skip
"""Each with the reason, and what to type."""


UNREAD = (
    (r"tracking\.(?!kind).*", "tracking=off", "tracking=local"),
    (r"tracking\.uri", "tracking=local", "tracking=server"),
    (r"cluster\.restarts", "cluster=local without workers", "strategy=multi_worker"),
    (r"strategy\.(workers|servers)", "cluster=tf_config,hosts,custom", "cluster=local"),
    (r"strategy\.cpu_replicas", "strategy.devices", "strategy.devices=[]"),
    (r"train\.fine_tune_(layers|rate)", "train.fine_tune_epochs=0", "train.fine_tune_epochs=5"),
    (r"train\.cache_features", "train=fit", "train=loop"),
    (r"augment\.magnitude", "augment.rand_augment=0", "augment.rand_augment=2"),
    (r"augment\.where", "augment=* without image augmentation", "augment=flip"),
    (r"export\.promote_if", "export.alias=null", "export.alias=champion"),
    (r"precision\.tf32", "precision=float64", "precision=float32"),
    (r"data\.resize", "data.size=null", "data.size=160"),
)
"""Names that may be typed, the combination beside which nothing reads them, and a setting that gives them an effect."""


def read_composed(composed: "Composed") -> Experiment:
    """Return the experiment of a job; refuse the first typed setting that nothing in it reads.

    Only typed settings count: an experiment's file may hold some that another choice leaves without effect.
    """
    check_keras_file()
    experiment = read(composed.document, composed.choices, composed.config_dirs, composed.overrides)
    for name in composed.typed:
        for pattern, combination, fix in UNREAD:
            if re.fullmatch(pattern, name) and (beside := found(combination, experiment)):
                raise UserError(f"{name} has no effect {beside}", "", fix)
    return experiment


def advice(experiment: Experiment) -> Iterator[str]:
    """Yield a line for a precision that works but costs more than it gains on the available devices."""
    model, strategy = experiment.of("model", ModelSettings), experiment.settings.get("strategy")
    name = model.precision.lowest if model else "float32"
    kind = "fp16" if name in ("mixed_float16", "float16") else "bf16"
    has_instructions = {f"avx512_{kind}", f"amx_{kind}"} & machine.cpu_flags()
    is_elsewhere = isinstance(strategy, TpuSettings) or (machine.gpus() and not is_on_cpu(experiment))
    if name not in ("float32", "float64") and not is_elsewhere and not has_instructions:
        yield f"precision={name} is not faster than float32 on this CPU, which lacks the instructions for it"
