"""Speed, as ratios measured side by side in one process."""

from pipeline.system import environment

environment.prepare()  # before the benchmarks import TensorFlow
