"""The precision of a network's last layer."""

import keras


def last_dtype() -> str:
    """Returns float32, or float64 under that policy: half precision would lose small probabilities."""
    return "float64" if keras.config.dtype_policy().name == "float64" else "float32"
