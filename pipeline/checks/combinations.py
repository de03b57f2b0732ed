"""Combinations of settings that cannot work, in the order in which they are checked and documented."""

from collections.abc import Iterator

from pipeline.checks.rules import Rule, is_on_cpu
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.model import ModelSettings
from stages.settings.strategy import TpuSettings

_KERAS = "github.com/keras-team/keras/issues"

COMBINATIONS = (
    Rule("augment.where=model with train=fit", "Keras' fit takes its own steps", "augment.where=input"),
    Rule(
        "augment.where=model with strategy=parameter_server",
        "the input of workers cannot hand over random numbers",
        "augment.where=input",
    ),
    Rule("augment.where=model with strategy=tpu", "XLA cannot resample images", "augment.where=input"),
    *(
        Rule(
            f"{setting} with the stage augment after model",
            "the model must know of it when it is built",
            f"{setting.partition('=')[0]}={off}",
        )
        for setting, off in {"augment.where=model": "input", "augment.mixup": "0", "augment.cutmix": "0"}.items()
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
        "train=fit with strategy=multi_worker",
        f"it stops at the first batch of several workers ({_KERAS}/20585)",
        "train=loop",
    ),
    Rule(
        "train=fit with strategy=parameter_server",
        "it takes no data from a coordinator, and Keras 3 has no DatasetCreator",
        "train=loop",
    ),
    Rule(
        "train=fit with strategy=central_storage",
        f"replicas lose each other's counts, so its metrics are wrong ({_KERAS}/21054)",
        "train=loop",
    ),
    Rule("train=fit with strategy=model_parallel", "it places the backward pass on no device", "train=loop"),
    Rule("train=fit with strategy=tpu", f"it fails on TPUs ({_KERAS}/19448)", "train=loop"),
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
    Rule(
        "train=fit with optimizer.ema_momentum without optimizer.ema_use",
        "Keras ends with the EMA as the weights wherever it keeps one",
        "train=loop",
    ),
    Rule("train=fit with precision=float16", "Keras scales the loss in mixed precision alone", "train=loop"),
    Rule(
        "train=fit with batches that replicas share unequally",
        f"Keras averages the replicas' means, which is wrong where their batches differ in size ({_KERAS}/19891)",
        "train=loop",
    ),
    Rule("train.jit=on with strategy=model_parallel", "XLA compiles for one device", "train.jit=off"),
    Rule("train.jit=off with strategy=tpu", "a TPU runs only what XLA compiled", "train.jit=auto"),
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
    Rule(
        "train.fine_tune_epochs without a backbone",
        "no layer of the network has that name, whose top would be trained",
        "train.fine_tune_epochs=0",
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
    Rule("train.fine_tune_epochs with train=fit", "it has one phase", "train=loop"),
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
        "precision=bfloat16 with optimizer=adam,adamw",
        "Adam's beta_2 of 0.999 is rounded to 1, and nothing is learned",
        "precision=mixed_bfloat16",
    ),
    Rule(
        "precision=float16 with optimizer=adam,adamw",
        "Adam's squares of small gradients are rounded to 0, and it divides by them",
        "precision=mixed_float16",
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


def advice(experiment: Experiment) -> Iterator[str]:
    """Yield a line for a precision that works but costs more than it gains on the available devices."""
    model = experiment.of("model", ModelSettings)
    if model is None or isinstance(experiment.settings.get("strategy"), TpuSettings):
        return
    name = model.precision.lowest
    gpus, flags = machine.gpus(), machine.cpu_flags()
    on_cpu = not gpus or is_on_cpu(experiment)
    reason = ""
    if name == "float64":
        yield "precision=float64 is slower than float32 on every device; it is for comparing numbers"
    elif on_cpu and name in ("mixed_float16", "float16") and not flags & {"avx512_fp16", "amx_fp16"}:
        reason = "this CPU, which computes float16 by float32"
    elif on_cpu and name in ("mixed", "mixed_bfloat16", "bfloat16") and not flags & {"avx512_bf16", "amx_bf16"}:
        reason = "this CPU, which has no instructions for bfloat16"
    elif not on_cpu and name in ("mixed_float16", "float16") and gpus[0].compute_capability < (7, 0):
        reason = f"{gpus[0].name}, which has no tensor cores"
    if reason:
        yield f"precision={name} is no faster than float32 on {reason}; precision=float32 gives more digits"
