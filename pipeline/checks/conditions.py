"""The settings of an experiment and its devices, as rules use them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipeline.config.cluster import ClusterSettings
from pipeline.config.experiment import Experiment
from pipeline.config.schemas import SCHEMAS
from pipeline.system import machine
from stages.settings.data import AugmentSettings, DigitsSettings, ImagesSettings
from stages.settings.model import (
    ApplicationSettings,
    KerasHubSettings,
    ModelSettings,
    NetworkSettings,
    encoder_settings,
)
from stages.settings.results import EvaluateSettings, ExportSettings
from stages.settings.strategy import (
    CentralStorageSettings,
    DefaultSettings,
    DevicesSettings,
    MirroredSettings,
    ModelParallelSettings,
    MultiWorkerSettings,
    OneDeviceSettings,
    ParameterServerSettings,
    StrategySettings,
    TpuSettings,
)
from stages.settings.train import FitSettings, OptimizerSettings, TrainSettings

Schema = TypeVar("Schema")


class NotConfigured(Exception):  # noqa: N818  # it is not an error: a rule about such settings does not apply
    """The experiment does not have these settings, because it omits their stage or runs a custom function."""


@dataclass(frozen=True)
class Settings:
    """The settings of an experiment by group, such as `settings.train.jit`.

    An attribute raises NotConfigured if the experiment does not have such settings, so rules need not check this.
    """

    experiment: Experiment

    @property
    def images(self) -> ImagesSettings:
        """Settings of a data source with encoded images."""
        return self._of("load", ImagesSettings)

    @property
    def augment(self) -> AugmentSettings:
        return self._of("augment", AugmentSettings)

    @property
    def strategy(self) -> StrategySettings:
        return self._of("strategy", StrategySettings)

    @property
    def devices(self) -> DevicesSettings:
        """Settings of a strategy for several devices of this machine."""
        return self._of("strategy", DevicesSettings)

    @property
    def cluster(self) -> ClusterSettings:
        return self.experiment.cluster

    @property
    def model(self) -> ModelSettings:
        return self._of("model", ModelSettings)

    @property
    def precision(self) -> str:
        """The policy with the lowest precision."""
        return self.model.precision.lowest

    @property
    def train(self) -> TrainSettings:
        return self._of("train", TrainSettings)

    @property
    def optimizer(self) -> OptimizerSettings:
        return _checked(self.train.optimizer, OptimizerSettings)

    @property
    def export(self) -> ExportSettings:
        return self._of("export", ExportSettings)

    def _of(self, stage: str, kind: type[Schema]) -> Schema:
        return _checked(self.experiment.settings.get(stage), kind)

    # Conditions that do not depend on a single setting

    @property
    def is_fit(self) -> bool:
        """Whether Keras' `fit` trains the model."""
        return isinstance(self.train, FitSettings)

    @property
    def has_workers(self) -> bool:
        """Whether the strategy has several processes."""
        return bool(self.experiment.members)

    @property
    def is_untracked(self) -> bool:
        return self.experiment.tracking.kind == "off"

    @property
    def has_several_replicas(self) -> bool:
        return (expected_replicas(self.experiment) or 1) > 1

    @property
    def has_unequal_shares(self) -> bool:
        """Whether the settings show that replicas get parts of a batch that differ in size."""
        data = self.experiment.of("load", DigitsSettings)
        replicas, examples = expected_replicas(self.experiment) or 1, data.train_examples() if data else 0
        return any(size % replicas for size in (self.train.batch_size, examples % self.train.batch_size))

    @property
    def may_have_backbone(self) -> bool:
        """Whether a network may have a layer `backbone`. Only two of this project's networks have one."""
        encoders = [encoder_settings(name, value) for name, value in self.model.encoders.items()]
        networks: list[Any] = [self.model.network, *encoders]
        are_custom = [not isinstance(one, NetworkSettings) or one._target_ != type(one)._target_ for one in networks]
        return any(are_custom) or any(isinstance(one, (ApplicationSettings, KerasHubSettings)) for one in networks)

    @property
    def has_tpu(self) -> bool:
        """Whether this machine has a TPU, or the settings or the environment name one."""
        strategy = self.experiment.of("strategy", TpuSettings)
        name = (strategy.name if strategy else None) or os.environ.get("TPU_NAME", "local")
        return name != "local" or any([*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")])

    @property
    def has_gpu_without_bfloat16(self) -> bool:
        """Whether the experiment runs on a GPU with a compute capability below 8.0."""
        return any(gpu.compute_capability < (8, 0) for gpu in machine.gpus()) and not is_on_cpu(self.experiment)

    @property
    def exports_saved_model(self) -> bool:
        return not self.export.formats or "saved_model" in self.export.formats

    @property
    def has_predictions(self) -> bool:
        """Whether a stage saves the predictions on the test split."""
        evaluate = self.experiment.of("evaluate", EvaluateSettings)
        return evaluate is not None and evaluate.predictions


def _checked(settings: object, kind: type[Schema]) -> Schema:
    if not isinstance(settings, kind):
        raise NotConfigured(kind.__name__)
    return settings


def option_of(settings: object) -> str:
    """Return the name of the option that has these settings, such as `mirrored`; empty for a custom class."""
    names = (name for schemas in SCHEMAS.values() for name, schema in schemas.items() if type(settings) is schema)
    return next(names, "")


def expected_replicas(experiment: Experiment) -> int | None:
    """Return the number of replicas that share a batch; None if only TensorFlow can determine it."""
    strategy = experiment.settings.get("strategy")
    gpus = len(machine.gpus())
    if isinstance(strategy, (MirroredSettings, CentralStorageSettings)):
        return len(strategy.devices) or gpus or strategy.cpu_replicas
    if isinstance(strategy, MultiWorkerSettings):
        return experiment.cluster.replicas(strategy.workers, gpus)
    has_one = (DefaultSettings, OneDeviceSettings, ModelParallelSettings, ParameterServerSettings)
    return 1 if isinstance(strategy, has_one) else None


def is_on_cpu(experiment: Experiment) -> bool:
    """Return whether the strategy names a CPU as a device."""
    strategy = experiment.settings.get("strategy")
    devices = [strategy.device] if isinstance(strategy, OneDeviceSettings) else []
    devices += strategy.devices if isinstance(strategy, DevicesSettings) else []
    return any("cpu" in str(device).lower() for device in devices)
