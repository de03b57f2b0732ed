"""Networks that turn an image or a text into a vector, in front of a network that takes columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from stages.errors import UserError
from stages.features.images import ImageFeature
from stages.features.kinds import Feature
from stages.features.texts import TextFeature
from stages.networks.keras_internals import is_graph_of_layers
from stages.settings.model import CnnPhotoSettings, CnnSettings, NetworkSettings, encoder_settings
from stages.targets import arguments_of, import_target, target_of

PHOTO = 64
"""Length of the shorter side, in pixels, from which an image has the encoder for photos."""


@dataclass(frozen=True)
class Encoder:
    """A function that builds the network of one feature, and the arguments that it gets besides the shapes."""

    function: Callable[..., keras.Model]
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Any) -> "Encoder":
        """Return the encoder that settings, a mapping or a dataclass, describe."""
        return cls(import_target(str(target_of(settings))), arguments_of(settings))

    def build(self, name: str, shape: tuple[int, ...], width: int, words: int | None) -> keras.Model:
        """Return the network of a feature, from [b, *shape] to float32 [b, width], or wider.

        Args:
            name: The name of the feature.
            shape: The shape of an example: of an image, or of the indices of a text's words.
            width: The length of the vector.
            words: For a text, the number of different indices.

        Raises:
            ValueError: If the network cannot be built, or returns something else.
        """
        given = {} if words is None else {"categories": {name: words}}
        network = self.function(shape if words is None else {name: shape}, width, **self.arguments, **given)
        if not isinstance(network, keras.Model) or network.output_shape != (None, width):
            returned = getattr(network, "output_shape", network)
            raise ValueError(f"it returns {returned!r:.100}, not a vector of {width} numbers")
        network.name = f"encode_{name}"
        return network


def encoders_of(schema: Mapping[str, Feature], chosen: Mapping[str, Any], is_needed: bool) -> dict[str, Encoder]:
    """Return the encoders of features by their names.

    Args:
        schema: The features.
        chosen: The settings of encoders, by the names of features or of their columns.
        is_needed: Whether the network takes vectors, so that each image needs an encoder.

    Raises:
        UserError: If a chosen feature does not exist, or is neither images nor texts, or is all that there is.
    """
    columns = {feature.column_name(name): name for name, feature in schema.items()}
    usable = [name for name, feature in schema.items() if isinstance(feature, ImageFeature | TextFeature)]
    settings: dict[str, Any] = {}
    for column, value in chosen.items():
        name = columns.get(column, column)
        if name not in usable or len(schema) == 1:
            problem = f"model.encoders.{column}: there is no column {column} of images or texts"
            if name in schema:
                alone = "is the only feature, so that the network itself takes it"
                problem = (
                    f"model.encoders.{column}: {column} {alone if len(schema) == 1 else f'is a {schema[name].kind}'}"
                )
            raise UserError(problem, [schema[name].column_name(name) for name in usable], "model.encoders={}")
        settings[name] = encoder_settings(f"model.encoders.{column}", value)
    for name in usable if is_needed and len(schema) > 1 else ():
        if isinstance(feature := schema[name], ImageFeature):
            settings.setdefault(name, suitable(feature))
    return {name: Encoder.of(one) for name, one in settings.items()}


def suitable(images: ImageFeature) -> NetworkSettings:
    """Return the settings of the default encoder of images: the network for photos, or for small images."""
    return CnnPhotoSettings() if min(images.height, images.width) >= PHOTO else CnnSettings()


def join_encoders(
    network: keras.Model, encoders: Mapping[str, keras.Model], inputs: Mapping[str, keras.KerasTensor]
) -> keras.Model:
    """Return a network from `inputs`, by name, to the outputs of `network` for the vectors of the encoders.

    Raises:
        UserError: If the network is not a graph of layers: its own steps or losses would not be called.
    """
    if not is_graph_of_layers(network):
        problem = f"model.encoders: {type(network).__name__} is neither a keras.Sequential nor a functional keras.Model"
        raise UserError(problem, "a functional network, or one that takes the images itself", "model.encoders={}")
    values = {name: encoders[name](value) if name in encoders else value for name, value in inputs.items()}
    given = values if len(values) > 1 else next(iter(values.values()))
    return keras.Model(dict(inputs), network(given), name=network.name)
