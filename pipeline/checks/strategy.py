"""Strategies that cannot work as configured."""

from pipeline.checks.refusal import Condition, Refusal, all_of, expected_replicas, has, runs_under
from pipeline.config.experiment import Experiment
from pipeline.system import machine
from stages.settings.strategy import MirroredSettings, MultiWorkerSettings, ParameterServerSettings


def _reduces_by(reduction: str) -> Condition:
    return has("strategy", MirroredSettings, lambda strategy: strategy.reduction == reduction)


def _has_no_gpus(experiment: Experiment) -> bool:
    return not machine.gpus()


STRATEGY = (
    Refusal(
        lambda experiment: not experiment.cluster.takes_single and not experiment.members,
        "cluster={cluster} with strategy={strategy}",
        "it has no workers",
        "cluster=local, or strategy=multi_worker, parameter_server",
        "strategy=multi_worker",
    ),
    Refusal(
        all_of(lambda experiment: experiment.deterministic, runs_under(ParameterServerSettings)),
        "deterministic=true with strategy=parameter_server",
        "workers take steps in no fixed order",
        "any other strategy",
        "deterministic=false",
    ),
    Refusal(
        all_of(_reduces_by("nccl"), _has_no_gpus),
        "strategy.reduction=nccl without GPUs",
        "NCCL connects GPUs",
        ("auto", "one_device", "hierarchical_copy"),
        "strategy.reduction=auto",
    ),
    Refusal(
        all_of(has("strategy", MultiWorkerSettings, lambda strategy: strategy.communication == "nccl"), _has_no_gpus),
        "strategy.communication=nccl without GPUs",
        "NCCL connects GPUs",
        ("auto", "ring"),
        "strategy.communication=auto",
    ),
    Refusal(
        all_of(_reduces_by("hierarchical_copy"), lambda experiment: (expected_replicas(experiment) or 0) % 2 == 1),
        "strategy.reduction=hierarchical_copy with {replicas} replicas",
        "TensorFlow adds up halves, and loses a replica of an odd number",
        "an even number of replicas, or auto, one_device",
        "strategy.reduction=auto",
    ),
)
