"""TensorFlow starts with its first operation, not when it is imported."""

from tests import commands

SCRIPT = """
from pipeline.internals.tensorflow import has_used_tensorflow as used
states = [used()]
import tensorflow as tf
states.append(used())
tf.config.list_physical_devices()
states.append(used())
tf.constant(1)
states.append(used())
print(states)
"""


def test_tensorflow_starts_with_its_first_operation() -> None:
    assert commands.run_alone(SCRIPT).stdout.strip() == "[False, False, False, True]"
