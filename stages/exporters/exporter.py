"""The base class of exporters: the name of their file, its loader, its limits, and the method that writes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from stages.data.examples import network_input, spec_of
from stages.results import Dataset, Model

LOADER = Path(__file__).with_name("reload.py")


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Writes a model in one format, which takes unscaled pixels and returns probabilities, float32 [N, classes].

    suffix: of the file, whose name is that of the format in `export.formats`, or `model` where that is the suffix;
        empty for a folder.
    loader: a Python file that imports nothing of this project, with a function `load(path)` that returns another one,
        from pixels, uint8 or float32 [N, H, W, C], to probabilities, an array [N, classes]. None: files are not
        reloaded.
    takes_features: whether a file takes features as the data set has them; else what its encoder makes of them.
    largest_difference: of a probability from the model's; None: see `limit`. least_agreement: fraction of the examples
        that get the model's class, near ties aside. Beyond these the stage fails.
    """

    suffix: ClassVar[str] = ""
    loader: ClassVar[Path | None] = None
    takes_features: ClassVar[bool] = True

    largest_difference: float | None = None
    least_agreement: float = 0.995

    def converted(self, model: Model, dataset: Dataset) -> Any:
        """Return the content of the file, of one that holds bytes.

        Args:
            model: on one device. Its network takes unscaled pixels, float32 [N, H, W, C].
            dataset: for class names, the shape of images and representative examples.

        Raises:
            UserError: where the format cannot hold `model`.
        """

    def check(self, model: Model, dataset: Dataset) -> None:
        """Raise UserError where the format cannot hold `model`, as far as that is known before it is trained.

        Args: those of `converted`.
        """
        self.converted(model, dataset)

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """Write the file or folder `path`.

        Args: those of `converted`.
        """
        path.write_bytes(self.converted(model, dataset))

    def limit(self, policy: str) -> float:
        """Return the largest difference that is allowed for a network of the Keras policy `policy`.

        Half precision has 3 or 4 digits, and where a format knows none the network is written in float32.
        """
        if self.largest_difference is not None:
            return self.largest_difference
        return 1e-4 if policy in ("float32", "float64") else 0.05


def answers_of(model: Model, dataset: Dataset) -> tuple[Any, tf.Module]:
    """Return a traced function from the network's inputs, such as `images`, unscaled pixels float32 [N, H, W, C], to
    what the task answers, such as
    `probabilities`, float32 [N, classes], and the module that holds its weights."""
    inputs = spec_of(dataset).inputs
    specs = [tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()]

    def serving_default(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = model.network(network_input(dict(zip(inputs, columns, strict=True))), training=False)
        predictions = model.task.head.predictions(outputs)
        return {model.task.head.answer: predictions, **model.task.head.derived(predictions)}

    owner = tf.Module(name="exported")
    owner.weights = [weight.value for weight in model.network.weights]
    owner.serving_default = tf.function(serving_default, input_signature=specs, autograph=False)
    return owner.serving_default, owner
