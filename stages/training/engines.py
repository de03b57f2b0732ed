"""The choice of the engine that takes the steps of a training."""

from stages.results import Strategy
from stages.settings.train import FitSettings, TrainSettings
from stages.training.engine import Engine
from stages.training.keras_fit import KerasFit
from stages.training.parameter_server import ParameterServer
from stages.training.synchronous import Synchronous


def engine_for(settings: TrainSettings, strategy: Strategy) -> type[Engine]:
    """Return the engine for a training with these settings and strategy."""
    if isinstance(settings, FitSettings):
        return KerasFit
    return ParameterServer if strategy.coordinator is not None else Synchronous
