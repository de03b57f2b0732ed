"""Stages of an experiment, one module each, and the parts that they are made of. Imports nothing of `pipeline`."""
