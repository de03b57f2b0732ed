"""Training that cannot work under a strategy, or that Keras' fit does differently from train=loop."""

from collections.abc import Callable, Mapping

from pipeline.checks.refusal import (
    Condition,
    Refusal,
    all_of,
    expected_replicas,
    has,
    last_batch,
    policy,
    runs_under,
)
from pipeline.config.experiment import Experiment
from stages.settings.strategy import (
    CentralStorageSettings,
    ModelParallelSettings,
    MultiWorkerSettings,
    ParameterServerSettings,
    TpuSettings,
)
from stages.settings.train import FitSettings, TrainSettings

FitCondition = Callable[[FitSettings, Experiment], bool]

KERAS = "github.com/keras-team/keras/issues"
NOT_WITH_FIT: Mapping[str, tuple[type, str]] = {
    "multi_worker": (MultiWorkerSettings, f"it stops at the first batch of several workers ({KERAS}/20585)"),
    "parameter_server": (
        ParameterServerSettings,
        "it takes no data from a coordinator, and Keras 3 has no DatasetCreator",
    ),
    "central_storage": (
        CentralStorageSettings,
        f"replicas lose each other's counts, so its metrics are wrong ({KERAS}/21054)",
    ),
    "model_parallel": (ModelParallelSettings, "it places the backward pass on no device"),
    "tpu": (TpuSettings, f"it fails on TPUs ({KERAS}/19448)"),
}


def _with_fit(problem: str, reason: str, when: FitCondition, replicas: bool = False) -> Refusal:
    """Returns the refusal of a setting that Keras' fit treats differently.

    Args:
        replicas: whether it does so on several replicas only.
    """

    def applies(experiment: Experiment) -> bool:
        settings = experiment.of("train", FitSettings)
        alone = (expected_replicas(experiment) or 1) == 1
        return settings is not None and not (replicas and alone) and when(settings, experiment)

    on_replicas = " on several replicas" if replicas else ""
    return Refusal(applies, f"{problem} with train=fit{on_replicas}", reason, "train=loop", "train=loop")


def _per_replica_batches_differ(settings: FitSettings, experiment: Experiment) -> bool:
    replicas = expected_replicas(experiment) or 1
    return bool(settings.batch_size % replicas or last_batch(experiment) % replicas)


def _jit(*choices: str) -> Condition:
    """Returns the condition that `train.jit` is one of `choices`."""
    return has("train", TrainSettings, lambda train: train.jit in choices)


TRAINING = (
    *(
        Refusal(
            all_of(has("train", FitSettings), runs_under(kind)),
            f"train=fit with strategy={name}",
            reason,
            "train=fit with default, one_device, mirrored",
            "train=loop",
        )
        for name, (kind, reason) in NOT_WITH_FIT.items()
    ),
    _with_fit(
        "optimizer.accumulation",
        "Keras counts batches, and fails on replicas",
        lambda settings, _: settings.optimizer.accumulation > 1,
    ),
    _with_fit(
        "optimizer.clip_norm",
        "Keras clips before the sum over the replicas",
        lambda settings, _: settings.optimizer.clip_norm > 0,
        replicas=True,
    ),
    _with_fit("train.jit=measure", "Keras has no way to try", lambda settings, _: settings.jit == "measure"),
    _with_fit(
        "train.jit=on",
        "compiled code cannot reach the other replicas' variables",
        lambda settings, _: settings.jit == "on",
        replicas=True,
    ),
    _with_fit(
        "precision={precision}",
        "Keras looks for an overflow of float16 before the sum, so that an overflow in one replica reaches all",
        lambda _, experiment: policy(experiment) in ("mixed", "mixed_float16"),
        replicas=True,
    ),
    _with_fit(
        "optimizer.ema_momentum and optimizer.ema_use=false",
        "Keras ends with the EMA as the weights wherever it keeps one",
        lambda settings, _: settings.optimizer.ema_momentum > 0 and not settings.optimizer.ema_use,
    ),
    _with_fit(
        "precision=float16",
        "Keras scales the loss in mixed precision alone",
        lambda _, experiment: policy(experiment) == "float16",
    ),
    _with_fit(
        "{replicas} replicas, train.batch_size={batch_size} and a last batch of {last_batch}",
        f"Keras averages the replicas' means, which is wrong where their batches differ in size ({KERAS}/19891)",
        _per_replica_batches_differ,
    ),
    Refusal(
        all_of(_jit("on", "measure"), runs_under(ModelParallelSettings)),
        "train.jit={jit} with strategy=model_parallel",
        "XLA compiles for one device",
        ("auto", "off"),
        "train.jit=off",
    ),
    Refusal(
        all_of(_jit("off", "measure"), runs_under(TpuSettings)),
        "train.jit={jit} with strategy=tpu",
        "a TPU runs only what XLA compiled",
        ("auto", "on"),
        "train.jit=auto",
    ),
    Refusal(
        all_of(_jit("measure"), runs_under(ParameterServerSettings)),
        "train.jit=measure with strategy=parameter_server",
        "the chief computes nothing that it could time",
        ("auto", "on", "off"),
        "train.jit=auto",
    ),
    Refusal(
        all_of(_jit("measure"), lambda experiment: experiment.deterministic),
        "train.jit=measure with deterministic=true",
        "the clock would choose the last digits",
        ("auto", "on", "off"),
        "train.jit=auto",
    ),
)
