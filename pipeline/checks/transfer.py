"""Transfer learning that cannot work."""

from pipeline.checks.refusal import Condition, Refusal, all_of, has, runs_under
from pipeline.config.experiment import Experiment
from stages.settings.model import CnnPhotoSettings, CnnSettings, MlpSettings, ModelSettings, ResnetSettings
from stages.settings.strategy import ModelParallelSettings, ParameterServerSettings
from stages.settings.train import FitSettings, TrainSettings

_IS_FROZEN = has("model", ModelSettings, lambda model: model.frozen)

_OWN_NETWORKS = (MlpSettings, CnnSettings, CnnPhotoSettings, ResnetSettings)


def _fine_tunes_and(condition: Condition) -> Condition:
    """Returns the condition that a backbone is to be fine-tuned, and `condition`."""
    fine_tunes = has("train", TrainSettings, lambda train: train.fine_tune_epochs)
    return all_of(has("model", ModelSettings), fine_tunes, condition)


def _has_no_backbone(experiment: Experiment) -> bool:
    """Returns whether the network is one of this project's without a layer `backbone`."""
    settings = experiment.of("model", ModelSettings)
    network = settings.network if settings else None
    return isinstance(network, _OWN_NETWORKS) and network._target_ == type(network)._target_


TRANSFER = (
    Refusal(
        all_of(_IS_FROZEN, _has_no_backbone),
        "model.frozen=true with model={model}",
        "it has no layer named backbone",
        "a network with one, as those of keras.applications have here, such as model=mobilenet_v2",
        "model.frozen=false",
    ),
    Refusal(
        all_of(has("model", ModelSettings, lambda model: model.weights == "imagenet"), _has_no_backbone),
        "model.weights=imagenet with model={model}",
        "they are the weights of a backbone of keras.applications, and it has none",
        "a network of keras.applications, such as model=mobilenet_v2",
        "model.weights=none",
    ),
    Refusal(
        _fine_tunes_and(_has_no_backbone),
        "train.fine_tune_epochs={fine_tune_epochs} with model={model}",
        "it has no layer named backbone, whose top would be trained",
        "a network with one, as those of keras.applications have here, such as model=mobilenet_v2",
        "train.fine_tune_epochs=0",
    ),
    Refusal(
        all_of(
            has("model", ModelSettings, lambda model: model.is_tracked),
            lambda experiment: experiment.tracking.kind == "off",
        ),
        "model.weights={weights} with tracking=off",
        "no store knows where they are",
        "tracking=local, tracking=server, or a file",
        "tracking=local",
    ),
    Refusal(
        all_of(_IS_FROZEN, runs_under(ModelParallelSettings)),
        "model.frozen=true with strategy=model_parallel",
        "it distributes whole layers, and a backbone is one",
        "any other strategy",
        "strategy=one_device",
    ),
    Refusal(
        _fine_tunes_and(has("model", ModelSettings, lambda model: not model.frozen)),
        "train.fine_tune_epochs={fine_tune_epochs} with model.frozen=false",
        "no layer is frozen that it could unfreeze",
        "model.frozen=true, or train.fine_tune_epochs=0",
        "model.frozen=true",
    ),
    Refusal(
        _fine_tunes_and(has("train", FitSettings)),
        "train.fine_tune_epochs={fine_tune_epochs} with train=fit",
        "it has one phase",
        "train=loop",
        "train=loop",
    ),
    Refusal(
        _fine_tunes_and(runs_under(ParameterServerSettings)),
        "train.fine_tune_epochs={fine_tune_epochs} with strategy=parameter_server",
        "its servers keep the variables of one optimizer",
        ("one_device", "mirrored", "multi_worker", "central_storage"),
        "strategy=one_device",
    ),
)
