"""Import the slow modules that all jobs need in the process that they are forked from, without starting TensorFlow.

TensorFlow must be imported here but never used. Its first operation fixes devices, determinism and collectives for the
process, and for every process forked from it.
"""

import sys
from importlib import import_module

from pipeline.provenance import code_state
from pipeline.system.environment import imports_kept, quiet_stderr

with quiet_stderr(), imports_kept():
    for _module in (
        "pipeline.launch.local",
        "jinja2",
        "matplotlib.backends.backend_agg",
        "pandas",
        "sklearn.metrics",
        "stages.strategy",
        "stages.load.digits",
        "stages.normalize",
        "stages.augment",
        "stages.inspect",
        "stages.model",
        "stages.networks.cnn",
        "stages.train",
        "stages.evaluate",
        "stages.export",
        "stages.exporters.saved_model",
    ):
        import_module(_module)
    for _loaded in [*sys.modules.values()]:
        hasattr(_loaded, "__file__")  # as AutoGraph does in each job; it imports the lazy parts of Keras

code_state.packages()
code_state.versions()
