"""Precisions that the hardware or the optimizer cannot compute in, and those that cost more than they gain."""

from collections.abc import Iterator

from pipeline.checks.refusal import (
    Condition,
    Refusal,
    all_of,
    gpus_without_bfloat16,
    has,
    has_precision,
    policy,
    runs_under,
)
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.optimizer import AdamSettings
from stages.settings.strategy import MultiWorkerSettings, OneDeviceSettings, TpuSettings
from stages.settings.train import TrainSettings


def _adam_in(name: str) -> Condition:
    has_adam = has("train", TrainSettings, lambda train: isinstance(train.optimizer, AdamSettings))
    return all_of(has_precision(name), has_adam)


def _bfloat16_on_old_gpu(experiment: Experiment) -> bool:
    strategy = experiment.settings.get("strategy")
    devices = [strategy.device] if isinstance(strategy, OneDeviceSettings) else getattr(strategy, "devices", [])
    on_cpu = any(devices) and all("cpu" in str(device).lower() for device in devices)
    return policy(experiment) in ("mixed_bfloat16", "bfloat16") and bool(gpus_without_bfloat16()) and not on_cpu


_OF_FLOAT32_VARIABLES = "optimizer=sgd, or mixed, mixed_bfloat16, mixed_float16, whose variables are float32"

PRECISION = (
    Refusal(
        all_of(has_precision("mixed_float16", "float16", "float64"), runs_under(TpuSettings)),
        "precision={precision} with strategy=tpu",
        "a TPU computes in float32 and bfloat16",
        ("float32", "mixed", "mixed_bfloat16", "bfloat16"),
        "precision=mixed",
    ),
    Refusal(
        all_of(has_precision("bfloat16"), runs_under(MultiWorkerSettings)),
        "precision=bfloat16 with strategy=multi_worker",
        "TensorFlow's collectives cannot send bfloat16 variables",
        ("float32", "mixed", "mixed_bfloat16", "mixed_float16", "float16", "float64"),
        "precision=mixed_bfloat16",
    ),
    Refusal(
        _adam_in("bfloat16"),
        "optimizer={optimizer} with precision=bfloat16",
        "Adam's beta_2 of 0.999 is rounded to 1, and nothing is learned",
        _OF_FLOAT32_VARIABLES,
        "precision=mixed_bfloat16",
    ),
    Refusal(
        _adam_in("float16"),
        "optimizer={optimizer} with precision=float16",
        "Adam's squares of small gradients are rounded to 0, and it divides by them",
        _OF_FLOAT32_VARIABLES,
        "precision=mixed_float16",
    ),
    Refusal(
        _bfloat16_on_old_gpu,
        "precision={precision} on {gpu} (compute capability {compute_capability})",
        "a GPU computes in bfloat16 from compute capability 8.0 on",
        "GPUs of compute capability 8.0 and up, TPUs, CPUs",
        "precision=mixed_float16",
    ),
)


def advice(experiment: Experiment) -> Iterator[str]:
    """Yields a line for each choice that works but costs more than it gains on the available devices."""
    strategy = experiment.settings.get("strategy")
    name = policy(experiment)
    if name is None or isinstance(strategy, TpuSettings):
        return
    gpus = machine.gpus()
    flags = machine.cpu_flags()
    on_cpu = not gpus or any("cpu" in str(device).lower() for device in getattr(strategy, "devices", []))
    slow = f"precision={name} is no faster than float32 on"
    if name == "float64":
        yield "precision=float64 is slower than float32 on every device; it is for comparing numbers"
    elif on_cpu and name in ("mixed_float16", "float16") and not flags & {"avx512_fp16", "amx_fp16"}:
        yield f"{slow} this CPU, which computes float16 by float32; precision=float32 gives more digits"
    elif on_cpu and name in ("mixed", "mixed_bfloat16", "bfloat16") and not flags & {"avx512_bf16", "amx_bf16"}:
        yield f"{slow} this CPU, which has no instructions for bfloat16; precision=float32 gives more digits"
    elif not on_cpu and name in ("mixed_float16", "float16") and any(gpu.compute_capability < (7, 0) for gpu in gpus):
        yield f"{slow} {gpus[0].name}, which has no tensor cores; precision=float32 gives more digits"
