"""Batches that the replicas cannot share."""

from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.strategy import (
    CentralStorageSettings,
    MirroredSettings,
    MultiWorkerSettings,
    StrategySettings,
    TpuSettings,
)
from stages.settings.train import TrainSettings


def expected_replicas(experiment: Experiment) -> int | None:
    """Returns the number of replicas that share a batch; None where it is unknown without TensorFlow."""
    settings = experiment.settings.get("strategy")
    gpus = len(machine.gpus())
    if isinstance(settings, (MirroredSettings, CentralStorageSettings)):
        return len(settings.devices) or gpus or settings.cpu_replicas
    if isinstance(settings, MultiWorkerSettings):
        return experiment.cluster.replicas(settings.workers, gpus)
    if isinstance(settings, TpuSettings) or not isinstance(settings, StrategySettings):
        return None
    return 1


def batch_is_shared(experiment: Experiment) -> None:
    """Refuses a batch that the replicas cannot share."""
    settings = experiment.settings.get("train")
    replicas = expected_replicas(experiment)
    if isinstance(settings, TrainSettings) and replicas:
        settings.check_share(replicas)
