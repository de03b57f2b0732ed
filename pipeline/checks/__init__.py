"""Checks that refuse experiments that cannot work, before TensorFlow is imported."""
