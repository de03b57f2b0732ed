"""Augmentation that cannot work where it is configured."""

from pipeline.checks.refusal import Refusal, fit, runs_under
from pipeline.config.experiment import Experiment
from stages.settings.images import AugmentSettings
from stages.settings.strategy import ParameterServerSettings, TpuSettings


def _in_step(experiment: Experiment) -> bool:
    augment = experiment.settings.get("augment")
    return isinstance(augment, AugmentSettings) and augment.where == "model" and augment.changes


def _after_model(experiment: Experiment) -> bool:
    augment = experiment.settings.get("augment")
    stages = list(experiment.pipeline)
    changes_model = isinstance(augment, AugmentSettings) and (_in_step(experiment) or augment.mixes)
    return changes_model and "model" in stages and stages.index("augment") > stages.index("model")


AUGMENTATION = (
    Refusal(
        lambda experiment: _in_step(experiment) and fit(experiment) is not None,
        "augment.where=model with train=fit",
        "Keras' fit takes its own steps",
        "augment.where=input",
        "augment.where=input",
    ),
    Refusal(
        lambda experiment: _in_step(experiment) and runs_under(ParameterServerSettings)(experiment),
        "augment.where=model with strategy=parameter_server",
        "the input of workers cannot hand over random numbers",
        "augment.where=input",
        "augment.where=input",
    ),
    Refusal(
        lambda experiment: _in_step(experiment) and runs_under(TpuSettings)(experiment),
        "augment.where=model with strategy=tpu",
        "XLA cannot resample images",
        "augment.where=input",
        "augment.where=input",
    ),
    Refusal(
        _after_model,
        "augment.where=model, augment.mixup or augment.cutmix with the stage augment after model",
        "the model must know of them when it is built",
        "augment before model",
        "augment.where=input augment.mixup=0 augment.cutmix=0",
    ),
)
