"""Names, types, defaults and ranges of every stage's settings. Needs no TensorFlow."""
