"""Combinations of settings that cannot work, in the order in which they are checked, and settings without effect."""

import re
from collections.abc import Iterable, Iterator

from pipeline.checks.rules import Rule, found, is_on_cpu
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.errors import UserError
from stages.settings.model import ModelSettings
from stages.settings.strategy import TpuSettings

_KERAS = "github.com/keras-team/keras/issues"

COMBINATIONS = (
    Rule("augment.where=model with train=fit", "Keras' fit takes its own steps", "augment.where=input"),
    Rule(
        "augment.where=model with strategy=parameter_server,tpu",
        "the input of workers cannot hand over random numbers, and XLA cannot resample images",
        "augment.where=input",
    ),
    Rule(
        "cluster=tf_config,hosts,custom with strategy=* without workers",
        "it runs members of a strategy",
        "strategy=multi_worker",
    ),
    Rule(
        "deterministic=true with strategy=parameter_server",
        "workers take steps in no fixed order",
        "deterministic=false",
    ),
    Rule("strategy.reduction=nccl without GPUs", "NCCL connects GPUs", "strategy.reduction=auto"),
    Rule("strategy.communication=nccl without GPUs", "NCCL connects GPUs", "strategy.communication=auto"),
    Rule(
        "strategy.reduction=hierarchical_copy with an odd number of replicas",
        "TensorFlow adds up halves, and loses a replica of an odd number",
        "strategy.reduction=auto",
    ),
    Rule(
        "train=fit with strategy=multi_worker,parameter_server,central_storage,model_parallel,tpu",
        f"Keras' fit works on one device and on its mirrored replicas ({_KERAS}/20585, {_KERAS}/21054, {_KERAS}/19448)",
        "train=loop",
    ),
    Rule("train=fit with optimizer.accumulation>1", "Keras counts batches, and fails on replicas", "train=loop"),
    Rule(
        "train=fit with optimizer.clip_norm with several replicas",
        "Keras clips before the sum over the replicas",
        "train=loop",
    ),
    Rule(
        "train=fit with train.jit=on with several replicas",
        "compiled code cannot reach the other replicas' variables",
        "train=loop",
    ),
    Rule(
        "train=fit with precision=mixed,mixed_float16 with several replicas",
        "Keras looks for an overflow of float16 before the sum, so that an overflow in one replica reaches all",
        "train=loop",
    ),
    Rule("train=fit with precision=float16", "Keras scales the loss in mixed precision alone", "train=loop"),
    Rule(
        "train=fit with batches that replicas share unequally",
        f"Keras averages the replicas' means, which is wrong where their batches differ in size ({_KERAS}/19891)",
        "train=loop",
    ),
    Rule("train.jit=on with strategy=model_parallel", "XLA compiles for one device", "train.jit=off"),
    Rule(
        "optimizer.ema_momentum with precision=bfloat16,float16",
        "an average of so few digits does not move",
        "precision=mixed",
    ),
    Rule("model.frozen=true without a backbone", "no layer of the network has that name", "model.frozen=false"),
    Rule(
        "model.weights=imagenet without a backbone",
        "they are the weights of a backbone of keras.applications",
        "model.weights=none",
    ),
    Rule("model.weights=runs:/*,models:/* with tracking=off", "no store knows where they are", "tracking=local"),
    Rule(
        "model.frozen=true with strategy=model_parallel",
        "it distributes whole layers, and a backbone is one",
        "strategy=one_device",
    ),
    Rule(
        "train.fine_tune_epochs without model.frozen",
        "no layer is frozen that it could unfreeze",
        "model.frozen=true",
    ),
    Rule(
        "train.fine_tune_epochs with strategy=parameter_server",
        "its servers keep the variables of one optimizer",
        "strategy=one_device",
    ),
    Rule(
        "precision=mixed_float16,float16,float64 with strategy=tpu",
        "a TPU computes in float32 and bfloat16",
        "precision=mixed",
    ),
    Rule(
        "precision=bfloat16 with strategy=multi_worker",
        "TensorFlow's collectives cannot send bfloat16 variables",
        "precision=mixed_bfloat16",
    ),
    Rule(
        "precision=bfloat16,float16 with optimizer=adam,adamw",
        "beta_2 of 0.999 is rounded to 1 or squares of small gradients to 0, and nothing is learned",
        "precision=mixed_bfloat16",
    ),
    Rule(
        "precision=mixed_bfloat16,bfloat16 with a GPU of compute capability below 8.0",
        "it cannot compute in bfloat16",
        "precision=mixed_float16",
    ),
    Rule("export.register with tracking=off", "models are registered in MLflow", "tracking=local"),
    Rule(
        "export.register without a SavedModel",
        "it is the format that becomes a model in MLflow",
        "export=saved_model",
    ),
    Rule("export.alias without export.register", "an alias is one of a registered model", "export.register=my_model"),
    Rule(
        "export.alias with export.promote_if=better,higher without predictions",
        "models are compared by the predictions that evaluate writes",
        "evaluate.predictions=true",
    ),
)


UNREAD = (
    (r"tracking\.(?!kind).*", "tracking=off", "tracking=local"),
    (r"tracking\.uri", "tracking=local", "tracking=server"),
    (r"cluster\.restarts", "cluster=local without workers", "strategy=multi_worker"),
    (r"strategy\.(workers|servers)", "cluster=tf_config,hosts,custom", "cluster=local"),
    (r"strategy\.cpu_replicas", "strategy.devices", "strategy.devices=[]"),
    (r"train\.fine_tune_(layers|rate)", "train.fine_tune_epochs=0", "train.fine_tune_epochs=5"),
    (r"train\.cache_features", "train=fit", "train=loop"),
    (r"augment\.magnitude", "augment.rand_augment=0", "augment.rand_augment=2"),
    (r"augment\.where", "augment=* without changes of single images", "augment=flip"),
    (r"export\.promote_if", "export.alias=null", "export.alias=champion"),
    (r"data\.resize", "data.size=null", "data.size=160"),
)
"""Names that may be typed, the combination beside which nothing reads them, and a setting that gives them an effect."""


def refuse_unused(experiment: Experiment, names: Iterable[str]) -> None:
    """Raise UserError for the first of `names`, dotted as they were typed, that nothing in `experiment` reads.

    Only typed settings count: an experiment's file may hold some that another choice leaves without effect.
    """
    for name in names:
        for pattern, combination, fix in UNREAD:
            if re.fullmatch(pattern, name) and (beside := found(combination, experiment)):
                raise UserError(f"{name} has no effect {beside}", "", fix)


def advice(experiment: Experiment) -> Iterator[str]:
    """Yield a line for a precision that works but costs more than it gains on the available devices."""
    model, strategy = experiment.of("model", ModelSettings), experiment.settings.get("strategy")
    name = model.precision.lowest if model else "float32"
    kind = "fp16" if name in ("mixed_float16", "float16") else "bf16"
    has_instructions = {f"avx512_{kind}", f"amx_{kind}"} & machine.cpu_flags()
    is_elsewhere = isinstance(strategy, TpuSettings) or (machine.gpus() and not is_on_cpu(experiment))
    if name == "float64":
        yield "precision=float64 is slower than float32 on every device; it is for comparing numbers"
    elif name != "float32" and not is_elsewhere and not has_instructions:
        yield f"precision={name} is no faster than float32 on this CPU, which has no instructions for it"
