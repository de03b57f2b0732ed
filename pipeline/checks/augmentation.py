"""Augmentation that cannot work where it is asked for."""

from pipeline.config.experiment import Experiment
from stages.errors import UserError
from stages.settings.images import AugmentSettings
from stages.settings.strategy import (
    ParameterServerSettings,
    TpuSettings,
)
from stages.settings.train import FitSettings


def augmentation_is_possible(experiment: Experiment) -> None:
    """Refuses augmentation in the step where no step can do it, and mixing that the model does not know of."""
    given, stages = experiment.settings.get("augment"), list(experiment.pipeline)
    if not isinstance(given, AugmentSettings):
        return
    strategy, train = experiment.settings.get("strategy"), experiment.settings.get("train")
    in_step = given.where == "model" and given.changes
    if in_step:
        nowhere = {
            "train=fit": isinstance(train, FitSettings) and "Keras' fit takes its own steps",
            "strategy=parameter_server": isinstance(strategy, ParameterServerSettings)
            and "workers take their images from no input that could hand over random numbers",
            "strategy=tpu": isinstance(strategy, TpuSettings) and "XLA cannot resample images",
        }
        for other, why in nowhere.items():
            if why:
                raise UserError(
                    f"augment.where=model with {other}: {why}", "augment.where=input", "augment.where=input"
                )
    if (in_step or given.mixes) and "model" in stages and stages.index("augment") > stages.index("model"):
        raise UserError(
            "augment.where=model, augment.mixup or augment.cutmix with the stage augment after model, which must know",
            "augment before model",
            "augment.where=input augment.mixup=0 augment.cutmix=0",
        )
