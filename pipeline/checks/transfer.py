"""Transfer learning that cannot work."""

from pipeline.checks.refusal import Condition, Refusal, fit, model, runs_under, train
from pipeline.config.experiment import Experiment
from stages.settings.model import CnnPhotoSettings, CnnSettings, MlpSettings, ModelSettings, ResnetSettings
from stages.settings.strategy import ModelParallelSettings, ParameterServerSettings


def _is_frozen(experiment: Experiment) -> bool:
    settings = model(experiment)
    return settings is not None and settings.frozen


def _fine_tunes(experiment: Experiment) -> ModelSettings | None:
    """Returns the settings of the model whose backbone is fine-tuned; None without fine-tuning."""
    settings = train(experiment)
    return model(experiment) if settings is not None and settings.fine_tune_epochs else None


def _tracked_weights(experiment: Experiment) -> bool:
    settings = model(experiment)
    return settings is not None and settings.is_tracked


def _fine_tunes_and(condition: Condition) -> Condition:
    return lambda experiment: _fine_tunes(experiment) is not None and condition(experiment)


_OWN_NETWORKS = (MlpSettings, CnnSettings, CnnPhotoSettings, ResnetSettings)


def _has_no_backbone(experiment: Experiment) -> bool:
    """Returns whether the network is one of this project's without a layer `backbone`."""
    settings = model(experiment)
    network = settings.network if settings else None
    return isinstance(network, _OWN_NETWORKS) and network._target_ == type(network)._target_


def _has_imagenet(experiment: Experiment) -> bool:
    settings = model(experiment)
    return settings is not None and settings.weights == "imagenet"


TRANSFER = (
    Refusal(
        lambda experiment: _is_frozen(experiment) and _has_no_backbone(experiment),
        "model.frozen=true with model={model}",
        "it has no layer named backbone",
        "a network with one, as those of keras.applications have here, such as model=mobilenet_v2",
        "model.frozen=false",
    ),
    Refusal(
        lambda experiment: _has_imagenet(experiment) and _has_no_backbone(experiment),
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
        lambda experiment: _tracked_weights(experiment) and experiment.tracking.kind == "off",
        "model.weights={weights} with tracking=off",
        "no store knows where they are",
        "tracking=local, tracking=server, or a file",
        "tracking=local",
    ),
    Refusal(
        lambda experiment: _is_frozen(experiment) and runs_under(ModelParallelSettings)(experiment),
        "model.frozen=true with strategy=model_parallel",
        "it distributes whole layers, and a backbone is one",
        "any other strategy",
        "strategy=one_device",
    ),
    Refusal(
        _fine_tunes_and(lambda experiment: not _is_frozen(experiment)),
        "train.fine_tune_epochs={fine_tune_epochs} with model.frozen=false",
        "no layer is frozen that it could unfreeze",
        "model.frozen=true, or train.fine_tune_epochs=0",
        "model.frozen=true",
    ),
    Refusal(
        _fine_tunes_and(lambda experiment: fit(experiment) is not None),
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
