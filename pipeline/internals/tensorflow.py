"""Detects whether TensorFlow has started, which no public function reports. This module does not import TensorFlow."""

import sys


def has_used_tensorflow() -> bool:
    """Return whether TensorFlow has started in this process, which fixes its devices and collectives."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module.context_safe() if module is not None else None
    return context is not None and bool(context._initialized)
