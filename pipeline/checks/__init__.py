"""Refusals: experiments that cannot work, before TensorFlow is imported."""
