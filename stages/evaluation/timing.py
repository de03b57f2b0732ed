"""Latency of one example and throughput of a batch, of a network in inference."""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from stages.networks.inference_memory import scoring_batch
from stages.results import Model, Split
from stages.safe_places import safe_place

CALLS = 20
"""Calls that a median is of."""

SECONDS = 0.1
FEWEST = 3
"""Calls that suffice after SECONDS."""


def time_inference(model: Model, split: Split, batch_size: int) -> dict[str, float]:
    """Returns `latency_milliseconds` of one example and `images_per_second` of a batch: medians of calls in a row.

    From pixels in the memory of this process to the network's output there, compiled, on one device; without reading,
    decoding, or a server.

    Args:
        batch_size: examples at a time, fewer where the split is smaller or memory does not suffice.
    """
    network = model.network
    shape = (None, *split.images.shape[1:])
    compiled = tf.function(  # one trace for both; no AutoGraph: there is nothing to rewrite
        lambda images: network(images, training=False), [tf.TensorSpec(shape, tf.float32)], autograph=False
    )
    count = min(batch_size, len(split), scoring_batch(network))
    images = split.images[:count].astype(np.float32)

    def run(size: int) -> float:
        return _median_seconds(lambda: compiled(tf.constant(images[:size])).numpy())

    return {"latency_milliseconds": 1000 * run(1), "images_per_second": count / run(count)}


def _median_seconds(call: Callable[[], object]) -> float:
    call()  # traces, and allocates
    seconds: list[float] = []
    while len(seconds) < CALLS and (len(seconds) < FEWEST or sum(seconds) < SECONDS):
        safe_place()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))
