"""`python -m benchmarks.gpu.worker [--deterministic]`: answers requests for training steps of this project and Keras.

One network is built at a time. Each request is a method of `Worker` that is not private.
"""

import functools
import gc
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import CASES, build, engine_of, real_digits, with_a_bright_image
from benchmarks.gpu.answering import answer_requests
from benchmarks.gpu.plan import RATE_COMPARED, Network
from benchmarks.models import built, images, trained_by_adam
from stages.exporters.reload import measure
from stages.results import Dataset, Model, Strategy
from stages.settings.strategy import DefaultSettings, OneDeviceSettings
from stages.settings.train import ScheduleSettings, SgdSettings, TrainSettings
from stages.strategy import strategy
from stages.training.parameter_server import ParameterServer
from stages.training.synchronous import Synchronous

MIB = 2**20
TIMED = 2
"""Steps that are timed after the first one, which compiles."""


class Worker:
    """Holds the network that was chosen last."""

    def __init__(self, deterministic: bool = False) -> None:
        self._is_deterministic = deterministic
        self._where = strategy(OneDeviceSettings(deterministic=deterministic))
        self._network: Network
        self._policy = "float32"
        self._tf32 = False
        self._jit = False
        self._model: Model
        self._ways: dict[str, Callable[[int], tuple[float, float]]] = {}
        self._before = 0

    def facts(self) -> dict[str, Any]:
        """Return what TensorFlow was built with and the GPUs that it finds."""
        build_info = tf.sysconfig.get_build_info()
        gpus = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        return {
            "gpus": [one.get("device_name", "a GPU") for one in details],
            "compute_capability": [one.get("compute_capability") for one in details],
            "cuda": build_info.get("cuda_version"),
            "cudnn": build_info.get("cudnn_version"),
        }

    def choose(self, network: Mapping[str, Any], policy: str, tf32: bool, jit: bool) -> None:
        """Build a network."""
        self._ways.clear()
        self._model = None  # type: ignore[assignment]
        keras.backend.clear_session()
        gc.collect()
        self._network, self._policy, self._tf32, self._jit = Network(**network), policy, tf32, jit
        self._before = self._reset_memory()
        self._model = self._built(self._where)

    def compare_weights(self, steps: int) -> float:
        """Train for a few steps of SGD, and return the largest difference from the CPU in float32 without XLA.

        It is relative to the largest change of a weight. Weights and the statistics of BatchNorm are compared
        separately, and the larger number counts.
        """
        start, expected = _on_the_cpu(self._network, steps)
        _set_tf32(self._tf32)  # the model on the CPU has switched it off
        network = self._model.network
        network.set_weights(start)
        settings = _by_sgd(self._network.batch)
        with self._where.distribution.scope():
            optimizer = keras.optimizers.SGD(RATE_COMPARED, momentum=0.9)
        self._engine(optimizer, settings).run(0, steps)
        return largest_difference(network, start, expected, network.get_weights())

    def warm_up(self, way: str) -> dict[str, Any]:
        """Take the first steps of `ours` or `keras`; return the seconds per step, and the peak of memory in MiB."""
        run = self._ways[way] = {"ours": self._ours, "keras": self._keras}[way]()
        run(1)
        seconds, _ = run(TIMED)
        peak = self._peak_memory()
        return {"seconds_per_step": seconds / TIMED, "peak_mib": None if peak is None else (peak - self._before) / MIB}

    def take_steps(self, way: str, steps: int) -> dict[str, float]:
        """Take some steps; return their seconds, and those in which they waited for their batches."""
        seconds, waited = self._ways[way](steps)
        return {"seconds": seconds, "waited": waited}

    def overflow(self, jit: bool) -> dict[str, Any]:
        """Train in mixed_float16 on digits with one image that overflows.

        Returns:
            The loss scale before and after that step, the number of skipped steps, the largest change of a weight in
            that step and in the following one, and whether all weights are finite.
        """
        case, batch = CASES["mixed_float16, an overflow"], 64
        dataset = with_a_bright_image(real_digits(8 * batch))
        model = build(case, self._where, dataset)
        settings = _by_sgd(batch)
        with self._where.distribution.scope():
            optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        loop = engine_of(self._where, model, dataset, optimizer, settings, jit)
        scale = loop.state.loss_scale
        assert scale is not None
        result: dict[str, Any] = {"skipped": 0}
        for number in itertools.count():
            before, before_scale = model.network.get_weights(), float(scale.value.numpy())
            loop.run(number, 1)
            moved = max(map(_distance, before, model.network.get_weights()))
            if result["skipped"] or number == 8:
                return {**result, "moved_later": moved, "finite": all(map(_is_finite, model.network.get_weights()))}
            if result["skipped"] != int(scale.skipped_steps.numpy()):
                after = float(scale.value.numpy())
                result = {"skipped": int(scale.skipped_steps.numpy()), "moved": moved, "scales": [before_scale, after]}
        raise AssertionError

    def predict(self, order: Mapping[str, Any]) -> None:
        """Write the predictions of an exported model on this process's device."""
        _set_tf32(False)
        measure(**order)

    def _built(self, where: Strategy) -> Model:
        return built(_images(self._network), where, self._network.settings, self._policy, tf32=self._tf32)

    def _engine(self, optimizer: keras.optimizers.Optimizer, settings: TrainSettings) -> Synchronous | ParameterServer:
        self._model.network.compile(optimizer)
        return engine_of(self._where, self._model, _images(self._network), optimizer, settings, self._jit)

    def _ours(self) -> Callable[[int], tuple[float, float]]:
        """Return a function that takes steps by the project's training loop."""
        settings = trained_by_adam(self._network.batch)
        with self._where.distribution.scope():
            optimizer = keras.optimizers.Adam()
        loop = self._engine(optimizer, settings)
        done = 0

        def run(steps: int) -> tuple[float, float]:
            nonlocal done
            began = time.perf_counter()
            loop.run(done, steps)
            done += steps
            return time.perf_counter() - began, loop.waited or 0.0

        return run

    def _keras(self) -> Callable[[int], tuple[float, float]]:
        """Return a function that takes steps by `fit`, on the same images in memory."""
        where = strategy(DefaultSettings(deterministic=self._is_deterministic))
        network = self._built(where).network
        optimizer: keras.optimizers.Optimizer = keras.optimizers.Adam()
        if self._policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(optimizer, loss, metrics=["accuracy"], jit_compile=self._jit, auto_scale_loss=False)
        source = _as_tf_data(_images(self._network), self._network.batch)

        def run(steps: int) -> tuple[float, float]:
            timer = Timer()
            network.fit(source, steps_per_epoch=steps + 1, epochs=1, verbose=0, callbacks=[timer])
            return timer.seconds, 0.0

        return run

    def _reset_memory(self) -> int:
        if not tf.config.list_physical_devices("GPU"):
            return 0
        tf.config.experimental.reset_memory_stats("GPU:0")
        return int(tf.config.experimental.get_memory_info("GPU:0")["current"])

    def _peak_memory(self) -> int | None:
        is_gpu = bool(tf.config.list_physical_devices("GPU"))
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if is_gpu else None


class Timer(keras.callbacks.Callback):
    """Measures the seconds of an epoch from the end of its first step: the start of `fit` does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self._began: float | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._began is None:
            self._began = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        assert self._began is not None
        self.seconds = time.perf_counter() - self._began


def largest_difference(
    network: keras.Model, start: Sequence[np.ndarray], expected: Sequence[np.ndarray], found: Sequence[np.ndarray]
) -> float:
    """Return the largest difference of `found` from `expected`, relative to the largest change since `start`.

    Weights that are trained and those that are not are compared separately, and the larger number is returned.
    """
    trained = {id(weight) for weight in network.trainable_weights}
    ratios = []
    for kind in (True, False):
        places = [index for index, weight in enumerate(network.weights) if (id(weight) in trained) == kind]
        changes = [_distance(start[index], expected[index]) for index in places]
        differences = [_distance(found[index], expected[index]) for index in places]
        if max(changes, default=0.0) > 0:
            ratios.append(max(differences) / max(changes))
    return max(ratios)


def _set_tf32(is_on: bool) -> None:
    """Switch TF32 for what is compiled and computed from now on."""
    tf.config.experimental.enable_tensor_float_32_execution(is_on)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    distance = np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0.0)
    return float(distance) if np.isfinite(distance) else np.inf


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(np.asarray(array, np.float64))))


@functools.lru_cache(maxsize=1)
def _images(network: Network) -> Dataset:
    dataset = images(network.examples * 10 // 9, network.side, network.channels)
    np.asarray(dataset.train.images[:1])
    return dataset


@functools.lru_cache(maxsize=1)
def _on_the_cpu(network: Network, steps: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the weights before and after some steps on the CPU, in float32 without XLA."""
    where = strategy(OneDeviceSettings(deterministic=False, device="/cpu:0"))
    dataset, settings = _images(network), _by_sgd(network.batch)
    model = built(dataset, where, network.settings)
    start = model.network.get_weights()
    with where.distribution.scope():
        optimizer = keras.optimizers.SGD(RATE_COMPARED, momentum=0.9)
    model.network.compile(optimizer)
    engine_of(where, model, dataset, optimizer, settings).run(0, steps)
    return start, model.network.get_weights()


def _by_sgd(batch: int) -> TrainSettings:
    # Adam divides a gradient by its own size: where gradients are tiny, rounding decides the sign of a whole update.
    return TrainSettings(
        epochs=1000, batch_size=batch, steps_per_call=1, optimizer=SgdSettings(), schedule=ScheduleSettings(), seed=1
    )


def _as_tf_data(dataset: Dataset, batch: int) -> tf.data.Dataset:
    """Return the training images as a script of Keras' tutorials reads them."""
    arrays = np.asarray(dataset.train.images[:]), np.asarray(dataset.train.targets)
    with tf.device("/cpu:0"):
        source = tf.data.Dataset.from_tensor_slices(arrays)
    batches = source.shuffle(1024).repeat().batch(batch, drop_remainder=True)
    batches = batches.map(lambda pixels, label: (tf.cast(pixels, tf.float32), label), tf.data.AUTOTUNE)
    return batches.prefetch(tf.data.AUTOTUNE)


def main() -> None:
    worker = Worker(deterministic="--deterministic" in sys.argv)
    names = [name for name in vars(Worker) if not name.startswith("_")]
    answer_requests({name: getattr(worker, name) for name in names})


if __name__ == "__main__":
    main()
