"""Imported once by the process that a sweep's jobs are forked from: all that is slow to import, nothing that starts it.

TensorFlow must be imported and never used here: devices, determinism and collectives are settled by its first
operation, for the whole process and, after that, for every process forked from it.
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
