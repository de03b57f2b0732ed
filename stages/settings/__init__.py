"""Names, types, defaults and ranges of the settings of all stages. This package does not import TensorFlow."""
