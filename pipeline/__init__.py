"""The framework: composes, checks, plans, runs, tracks, sweeps, compares. Imports no TensorFlow."""

__version__ = "0.1.0"
