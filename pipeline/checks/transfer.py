"""Transfer learning that cannot work, refused before TensorFlow is imported."""

from pipeline.config.experiment import Experiment
from stages.errors import UserError
from stages.settings.model import ModelSettings
from stages.settings.strategy import ModelParallelSettings, ParameterServerSettings
from stages.settings.train import FitSettings, TrainSettings


def transfer_is_possible(experiment: Experiment) -> None:
    """Raises UserError where weights cannot be had, a backbone not frozen, or its top not unfrozen later."""
    strategy, name = experiment.settings.get("strategy"), experiment.choices.get("strategy")
    model, train = experiment.settings.get("model"), experiment.settings.get("train")
    if not isinstance(model, ModelSettings):
        return
    if model.is_tracked and experiment.tracking.kind == "off":
        raise UserError(
            f"model.weights={model.weights} with tracking=off: nothing knows where they are",
            "tracking=local, tracking=server, or a file",
            "tracking=local",
        )
    if model.frozen and isinstance(strategy, ModelParallelSettings):
        raise UserError(
            "model.frozen=true with strategy=model_parallel, which puts layers into others and takes no backbone apart",
            "every other strategy",
            "strategy=one_device",
        )
    if not isinstance(train, TrainSettings) or not train.fine_tune_epochs:
        return
    given = f"train.fine_tune_epochs={train.fine_tune_epochs}"
    if not model.frozen:
        raise UserError(
            f"{given} unfreezes what model.frozen=false has not frozen",
            "model.frozen=true, or train.fine_tune_epochs=0",
            "model.frozen=true",
        )
    if isinstance(train, FitSettings):
        raise UserError(f"{given} with train=fit, which has one phase", "train=loop", "train=loop")
    if isinstance(strategy, ParameterServerSettings):
        raise UserError(
            f"{given} with strategy={name}, whose servers keep the variables of one optimizer",
            ("one_device", "mirrored", "multi_worker", "central_storage"),
            "strategy=one_device",
        )
