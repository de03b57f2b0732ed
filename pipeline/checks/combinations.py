"""Strategies, precisions and ways to train that cannot go together, and precisions that cannot pay."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.checks.transfer import transfer_is_possible
from pipeline.cluster.task import cluster_settings
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.errors import UserError
from stages.settings.data import DataSettings
from stages.settings.model import ModelSettings
from stages.settings.optimizer import AdamSettings
from stages.settings.strategy import (
    CentralStorageSettings,
    MirroredSettings,
    ModelParallelSettings,
    MultiWorkerSettings,
    OneDeviceSettings,
    ParameterServerSettings,
    TpuSettings,
)
from stages.settings.train import FitSettings, TrainSettings

KERAS = "github.com/keras-team/keras/issues"
NOT_WITH_FIT: Mapping[type, str] = {
    MultiWorkerSettings: f"its fit stops at the first batch of several workers ({KERAS}/20585)",
    ParameterServerSettings: "its fit takes no data from a coordinator, and DatasetCreator went with Keras 3",
    CentralStorageSettings: f"replicas lose each other's counts, so its metrics are wrong ({KERAS}/21054)",
    ModelParallelSettings: "its fit gives what goes backward no device",
    TpuSettings: f"its fit fails on TPUs ({KERAS}/19448)",
}
HALF_VARIABLES = {
    "bfloat16": "its beta_2 of 0.999 is rounded to 1, and nothing is learnt",
    "float16": "its squares of small gradients are rounded to 0, and it divides by them",
}
TPU_TIMEOUT_SECONDS = 5


def _cluster_has_a_strategy(experiment: Experiment) -> None:
    if experiment.cluster.kind != "local" and cluster_settings(experiment) is None:
        name = experiment.choices.get("strategy")
        raise UserError(
            f"cluster={experiment.cluster.kind} with strategy={name}, which has no workers",
            "cluster=local, or strategy=multi_worker, parameter_server",
            "strategy=multi_worker",
        )


def _fit_is_right(experiment: Experiment) -> None:
    strategy, train = experiment.settings.get("strategy"), experiment.settings.get("train")
    if not isinstance(train, FitSettings):
        return
    for kind, why in NOT_WITH_FIT.items():
        if isinstance(strategy, kind):
            name = experiment.choices.get("strategy")
            raise UserError(
                f"train=fit cannot be Keras' own under strategy={name}: {why}",
                "train=fit with default, one_device, mirrored",
                "train=loop",
            )
    mirrored = strategy if isinstance(strategy, MirroredSettings) else None
    several = mirrored and (len(mirrored.devices) or len(machine.gpus()) or mirrored.cpu_replicas) > 1
    policy = _policy(experiment)
    wrong = {
        "optimizer.accumulation": train.optimizer.accumulation > 1 and "it counts batches, and fails on replicas",
        "optimizer.clip_norm": several and train.optimizer.clip_norm and "it clips before the sum over the replicas",
        "train.jit=measure": train.jit == "measure" and "it has no way to try",
        "train.jit=on": several and train.jit == "on" and "compiled code cannot reach the other replicas' variables",
        f"precision={policy}": (several and policy in ("mixed", "mixed_float16"))
        and "it looks for an overflow before the sum, so that one in one replica is applied to all",
        "optimizer.ema_use with train.early_stopping_patience and train.restore_best=false": (
            train.optimizer.ema_use and train.early_stopping_patience and not train.restore_best
        )
        and "a run that stops early ends without its averages",
        "precision=float16": policy == "float16" and "it scales the loss in mixed precision alone",
    }
    for given, reason in wrong.items():
        if reason:
            raise UserError(f"{given} with train=fit: Keras does it otherwise ({reason})", "train=loop", "train=loop")
    _fit_shares_are_equal(experiment, train, mirrored)


def _fit_shares_are_equal(experiment: Experiment, train: FitSettings, mirrored: MirroredSettings | None) -> None:
    replicas = 1 if mirrored is None else len(mirrored.devices) or len(machine.gpus()) or mirrored.cpu_replicas
    data = experiment.settings.get("load")
    examples = data.train_examples() if isinstance(data, DataSettings) else None
    last = (examples or 0) % train.batch_size
    if train.batch_size % replicas or last % replicas:
        raise UserError(
            f"train=fit averages the replicas' means, which is wrong where shares differ: {replicas} replicas, "
            f"train.batch_size={train.batch_size}, a last batch of {last or train.batch_size} ({KERAS}/19891)",
            f"batches that {replicas} divides, or train=loop, which is right for all",
            "train=loop",
        )


def _jit_is_possible(experiment: Experiment) -> None:
    strategy, train = experiment.settings.get("strategy"), experiment.settings.get("train")
    if not isinstance(train, TrainSettings):
        return
    if train.jit in ("on", "measure") and isinstance(strategy, ModelParallelSettings):
        raise UserError(
            f"train.jit={train.jit} with strategy=model_parallel: XLA compiles for one device",
            ("auto", "off"),
            "train.jit=off",
        )
    if train.jit in ("off", "measure") and isinstance(strategy, TpuSettings):
        raise UserError(
            f"train.jit={train.jit} with strategy=tpu: a TPU runs nothing else", ("auto", "on"), "train.jit=auto"
        )
    if train.jit == "measure" and isinstance(strategy, ParameterServerSettings):
        raise UserError(
            "train.jit=measure with strategy=parameter_server: the chief computes nothing that it could time",
            ("auto", "on", "off"),
            "train.jit=auto",
        )
    if train.jit == "measure" and experiment.deterministic:
        raise UserError(
            "train.jit=measure with deterministic=true: the clock would choose the last digits",
            ("auto", "on", "off"),
            "train.jit=auto",
        )


def _determinism_is_possible(experiment: Experiment) -> None:
    if experiment.deterministic and isinstance(experiment.settings.get("strategy"), ParameterServerSettings):
        raise UserError(
            "deterministic=true with strategy=parameter_server: workers take steps in no fixed order",
            "every other strategy",
            "deterministic=false",
        )


def _communication_has_gpus(experiment: Experiment) -> None:
    strategy = experiment.settings.get("strategy")
    if isinstance(strategy, MirroredSettings) and strategy.reduction == "nccl" and not machine.gpus():
        raise UserError(
            "strategy.reduction=nccl needs GPUs", ("auto", "one_device", "hierarchical_copy"), "strategy.reduction=auto"
        )
    if isinstance(strategy, MultiWorkerSettings) and strategy.communication == "nccl" and not machine.gpus():
        raise UserError("strategy.communication=nccl needs GPUs", ("auto", "ring"), "strategy.communication=auto")


def _precision_has_hardware(experiment: Experiment) -> None:
    strategy, policy = experiment.settings.get("strategy"), _policy(experiment)
    if isinstance(strategy, TpuSettings) and policy in ("mixed_float16", "float16", "float64"):
        raise UserError(
            f"precision={policy} cannot run on a TPU",
            ("float32", "mixed", "mixed_bfloat16", "bfloat16"),
            "precision=mixed",
        )
    if isinstance(strategy, MultiWorkerSettings) and policy == "bfloat16":
        raise UserError(
            "precision=bfloat16 with strategy=multi_worker: TensorFlow's collectives cannot send bfloat16 variables",
            ("float32", "mixed", "mixed_bfloat16", "mixed_float16", "float16", "float64"),
            "precision=mixed_bfloat16",
        )
    train = experiment.settings.get("train")
    if isinstance(train, TrainSettings) and isinstance(train.optimizer, AdamSettings) and policy in HALF_VARIABLES:
        raise UserError(
            f"optimizer={train.optimizer.name} with precision={policy}: {HALF_VARIABLES[policy]}",
            "optimizer=sgd, or mixed, mixed_bfloat16, mixed_float16, whose variables are float32",
            f"precision=mixed_{policy}",
        )
    named = [strategy.device] if isinstance(strategy, OneDeviceSettings) else getattr(strategy, "devices", [])
    on_cpu = any(named) and all("cpu" in str(device).lower() for device in named)
    old = [gpu for gpu in machine.gpus() if gpu.compute_capability < (8, 0)]
    if policy in ("mixed_bfloat16", "bfloat16") and old and not on_cpu:
        capability = ".".join(map(str, old[0].compute_capability))
        raise UserError(
            f"precision={policy} cannot run on {old[0].name} (compute capability {capability})",
            "GPUs of compute capability 8.0 and up, TPUs, CPUs",
            "precision=mixed_float16",
        )


def _reduction_loses_nobody(experiment: Experiment) -> None:
    strategy = experiment.settings.get("strategy")
    if isinstance(strategy, MirroredSettings) and strategy.reduction == "hierarchical_copy":
        count = len(strategy.devices) or len(machine.gpus()) or strategy.cpu_replicas
        if count % 2:
            raise UserError(
                f"strategy.reduction=hierarchical_copy adds up halves, and loses a replica of {count}",
                "an even number of replicas, or auto, one_device",
                "strategy.reduction=auto",
            )


def _tpu_is_there(experiment: Experiment) -> None:
    strategy = experiment.settings.get("strategy")
    if not isinstance(strategy, TpuSettings):
        return
    name = strategy.name or os.environ.get("TPU_NAME")
    if name is None or name == "local":
        if not (list(Path("/dev").glob("accel*")) or list(Path("/dev/vfio").glob("[0-9]*"))):
            raise UserError(
                "strategy=tpu finds no TPU in this machine, and none is named",
                "a machine with a TPU, or the name or address of one",
                "strategy=mirrored",
            )
    elif name.startswith("grpc://"):
        host, _, port = name.removeprefix("grpc://").partition(":")
        try:
            socket.create_connection((host, int(port or 8470)), TPU_TIMEOUT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise UserError(
                f"strategy.name={name} does not answer ({error})", "the address of a TPU", "strategy=mirrored"
            ) from error


def advice(experiment: Experiment) -> Iterator[str]:
    """Yields a line for each choice that works, and costs more than it gives on the devices at hand."""
    strategy, policy = experiment.settings.get("strategy"), _policy(experiment)
    if policy is None or isinstance(strategy, TpuSettings):
        return
    gpus, flags = machine.gpus(), machine.cpu_flags()
    on_cpu = not gpus or any("cpu" in str(name).lower() for name in getattr(strategy, "devices", []))
    slow = f"precision={policy} is no faster than float32 on"
    if policy == "float64":
        yield "precision=float64 is slower than float32 on every device; it is for comparing numbers"
    elif on_cpu and "float16" in policy and "bfloat16" not in policy and not flags & {"avx512_fp16", "amx_fp16"}:
        yield f"{slow} this CPU, which computes float16 by float32; precision=float32 gives more digits"
    elif on_cpu and policy in ("mixed", "mixed_bfloat16", "bfloat16") and not flags & {"avx512_bf16", "amx_bf16"}:
        yield f"{slow} this CPU, which has no instructions for bfloat16; precision=float32 gives more digits"
    elif not on_cpu and policy in ("mixed_float16", "float16") and any(gpu.compute_capability < (7, 0) for gpu in gpus):
        yield f"{slow} {gpus[0].name}, which has no tensor cores; precision=float32 gives more digits"


def _policy(experiment: Experiment) -> str | None:
    model = experiment.settings.get("model")
    return model.precision.policy if isinstance(model, ModelSettings) else None


COMBINATIONS: tuple[Callable[[Experiment], None], ...] = (
    _cluster_has_a_strategy,
    _fit_is_right,
    transfer_is_possible,
    _jit_is_possible,
    _determinism_is_possible,
    _communication_has_gpus,
    _reduction_loses_nobody,
    _precision_has_hardware,
    _tpu_is_there,
)
