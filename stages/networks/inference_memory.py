"""Memory that a network takes in inference, and how many examples a batch of it may hold."""

import keras
import tensorflow as tf

from stages.networks.complexity import peak_of_inference
from stages.results import Strategy

_MIB = 2**20

ALLOCATOR_OVERHEAD = 1.15
"""Ratio of a step's memory to its tensors': scratch memory of convolutions, and fragments the allocator cannot use."""


SCORING_BYTES = 256 * _MIB
"""Limit for a batch of validation or evaluation in one memory: the host's, or a GPU's."""


def scoring_batch(network: keras.Model, strategy: Strategy | None = None) -> int:
    """Returns how many examples fit into SCORING_BYTES at a time, over all replicas; one a replica at least.

    It depends on the network and the devices alone, not on free memory, so that every run has the same batches.

    Args:
        strategy: None: one CPU.
    """
    replicas, sharing = (strategy.in_sync, replicas_per_memory(strategy)) if strategy is not None else (1, 1)
    memories = replicas // sharing
    return max(int(SCORING_BYTES / max(inference_bytes(network, strategy), 1)) * memories, replicas)


def inference_bytes(network: keras.Model, strategy: Strategy | None) -> float:
    """Returns the bytes that one example takes in inference, including the input's prefetched elements."""
    image = 4 * int(tf.TensorShape(network.input_shape[1:]).num_elements())
    return ALLOCATOR_OVERHEAD * peak_of_inference(network) + elements_ahead(strategy) * image


def elements_ahead(strategy: Strategy | None) -> float:
    """Returns the input's prefetched elements for each that is computed (stages/data/batches.py), on CPUs."""
    if strategy is None:
        return 6
    return 1 if on_gpus(strategy) else 2 + 4 / replicas_per_memory(strategy)


def on_gpus(strategy: Strategy) -> bool:
    """Returns whether every device of `strategy` is a GPU."""
    return all("GPU" in device for device in strategy.devices)


def replicas_per_memory(strategy: Strategy) -> int:
    """Returns how many replicas share one memory: a GPU has its own, replicas on this host's CPU share one."""
    if on_gpus(strategy) or strategy.in_sync == 1:
        return 1
    return len(strategy.distribution.extended.worker_devices)
