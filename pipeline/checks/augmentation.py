"""Augmentation that cannot work where it is configured."""

from pipeline.checks.refusal import Refusal, all_of, has, runs_under
from pipeline.config.experiment import Experiment
from stages.settings.images import AugmentSettings
from stages.settings.strategy import ParameterServerSettings, TpuSettings
from stages.settings.train import FitSettings

_IN_STEP = has("augment", AugmentSettings, lambda augment: augment.where == "model" and augment.changes)
_MIXES = has("augment", AugmentSettings, lambda augment: augment.mixes)


def _after_model(experiment: Experiment) -> bool:
    stages = list(experiment.pipeline)
    changes_model = _IN_STEP(experiment) or _MIXES(experiment)
    return changes_model and "model" in stages and stages.index("augment") > stages.index("model")


AUGMENTATION = (
    Refusal(
        all_of(_IN_STEP, has("train", FitSettings)),
        "augment.where=model with train=fit",
        "Keras' fit takes its own steps",
        "augment.where=input",
        "augment.where=input",
    ),
    Refusal(
        all_of(_IN_STEP, runs_under(ParameterServerSettings)),
        "augment.where=model with strategy=parameter_server",
        "the input of workers cannot hand over random numbers",
        "augment.where=input",
        "augment.where=input",
    ),
    Refusal(
        all_of(_IN_STEP, runs_under(TpuSettings)),
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
