"""Strategies that cannot work as configured."""

from pipeline.checks.batch import expected_replicas
from pipeline.checks.refusal import Refusal, runs_under
from pipeline.cluster.task import cluster_settings
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.strategy import MirroredSettings, MultiWorkerSettings, ParameterServerSettings


def _reduces_by(experiment: Experiment, reduction: str) -> bool:
    strategy = experiment.settings.get("strategy")
    return isinstance(strategy, MirroredSettings) and strategy.reduction == reduction


def _communicates_by_nccl(experiment: Experiment) -> bool:
    strategy = experiment.settings.get("strategy")
    return isinstance(strategy, MultiWorkerSettings) and strategy.communication == "nccl"


STRATEGY = (
    Refusal(
        lambda experiment: not experiment.cluster.takes_single and cluster_settings(experiment) is None,
        "cluster={cluster} with strategy={strategy}",
        "it has no workers",
        "cluster=local, or strategy=multi_worker, parameter_server",
        "strategy=multi_worker",
    ),
    Refusal(
        lambda experiment: experiment.deterministic and runs_under(ParameterServerSettings)(experiment),
        "deterministic=true with strategy=parameter_server",
        "workers take steps in no fixed order",
        "any other strategy",
        "deterministic=false",
    ),
    Refusal(
        lambda experiment: _reduces_by(experiment, "nccl") and not machine.gpus(),
        "strategy.reduction=nccl without GPUs",
        "NCCL connects GPUs",
        ("auto", "one_device", "hierarchical_copy"),
        "strategy.reduction=auto",
    ),
    Refusal(
        lambda experiment: _communicates_by_nccl(experiment) and not machine.gpus(),
        "strategy.communication=nccl without GPUs",
        "NCCL connects GPUs",
        ("auto", "ring"),
        "strategy.communication=auto",
    ),
    Refusal(
        lambda experiment: (
            _reduces_by(experiment, "hierarchical_copy") and (expected_replicas(experiment) or 0) % 2 == 1
        ),
        "strategy.reduction=hierarchical_copy with {replicas} replicas",
        "TensorFlow adds up halves, and loses a replica of an odd number",
        "an even number of replicas, or auto, one_device",
        "strategy.reduction=auto",
    ),
)
