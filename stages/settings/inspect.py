"""Settings of the stage `inspect`."""

from dataclasses import dataclass

from omegaconf import II

from stages.settings.ranges import number, option


@option("inspect", "inspect")
@dataclass(kw_only=True)
class InspectSettings:
    """Statistics of the splits, and galleries of the images that training will see."""

    _target_: str = "stages.inspect.inspect"
    batch_size: int = number("${oc.select:train.batch_size,64}", at_least=1, unit="examples of the global batch")
    """By default that of training, so that the batch shown is training's first."""
    seed: int = II("seed")
