"""Preloads slow imports in the process that a sweep's jobs are forked from, without starting TensorFlow.

TensorFlow must be imported and never used here: its first operation fixes devices, determinism and collectives for the
whole process, and then for every process forked from it.
"""

from importlib import import_module

from pipeline.system.environment import quiet_stderr

with quiet_stderr():
    for _module in (
        "pipeline.tracking.journaled",
        "stages.strategy",
        "stages.load.digits",
        "stages.normalize",
        "stages.augment",
        "stages.inspect",
        "stages.model",
        "stages.networks.cnn",
        "stages.train",
        "stages.fit",
        "stages.evaluate",
        "stages.export",
    ):
        import_module(_module)
