"""The laws of the strategies: whatever computes, one device's numbers come out."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cases import CASES as TABLE
from benchmarks.cases import COMBINED, TOGETHER, Case, build, flat, real_digits, run
from benchmarks.clusters import run_workers
from stages.data.split import Split
from stages.errors import UserError
from stages.evaluation.eval_step import Scorer
from stages.model import resolve_policy
from stages.networks.random_layers import prepare_random_layers
from stages.optimization.xla import choose_jit
from stages.results import Model, Strategy
from stages.settings import strategy as kinds
from stages.settings.train import AdamSettings, SgdSettings
from stages.strategy import strategy
from tests import commands
from tests.stages.experiments import PLACES, settings, start
from tests.stages.images import Telling

pytestmark = pytest.mark.slow

STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    **PLACES,
    "another device": lambda: strategy(kinds.OneDeviceSettings(deterministic=False, device="/cpu:2")),
    "mirrored 4": lambda: strategy(kinds.MirroredSettings(deterministic=False, cpu_replicas=4)),
    "central_storage 3": lambda: strategy(
        kinds.CentralStorageSettings(deterministic=False, cpu_replicas=3, parameter_device="/cpu:3")
    ),
}
STEPS = 20
"""More than an epoch of most cases, so that the last batch of one is among them, and the first of the next."""

CASES = {**TABLE, **COMBINED}
OVERFLOW = "mixed_float16, an overflow"
SHARES = ["BatchNorm synchronized", "Adam, dropout"]
"""Cases in which it matters how many replicas share a batch: SGD and Adam, each with a last batch of one example."""

PLACED = [TOGETHER, "BatchNorm synchronized", OVERFLOW, "float16"]
"""Cases in which it matters where variables are: what a step reads, reduces, updates and keeps, in each dtype."""

# What one replica computes by itself (rates, losses, decay), clipping, parts of a batch and the EMA are compared with
# NumPy, with up to four mirrored replicas, in tests/stages/networks/test_float64.py. Here stands what lies between
# replicas, and what depends on where variables are. The others of STRATEGIES differ from "mirrored 2", or from one
# device, in one thing each, and run what that thing can change: placement, shares, or the reduction.
CHOSEN: Mapping[str, list[str]] = {
    "default": ["SGD, a last batch of 1", OVERFLOW],
    "another device": ["Adam, dropout"],
    "mirrored 2": [
        "own loss, penalty and metric", "XLA (mlp)", "bfloat16", "float16", OVERFLOW, *SHARES,
    ],
    "mirrored 3": SHARES,
    "central_storage 2": [*PLACED, "own loss, penalty and metric", "XLA (mlp)"],
    "central_storage 3": ["Adam, dropout"],
    "model_parallel 2": [*PLACED, "Adam, dropout"],  # a loss of its own is refused, XLA elsewhere
}  # fmt: skip
PAIRS = [(name, where) for where in CHOSEN for name in CHOSEN[where]]
NADAM, MUON = list(COMBINED)[1:]
ON_WORKERS = [NADAM, MUON, *PLACED, "own loss, penalty and metric", "Adam, dropout"]
"""Cases of two processes; their collectives cannot send bfloat16, and XLA compiles nothing that lies between them."""


def assert_equal(name: str, weights: np.ndarray, means: Mapping[str, float]) -> None:
    case, (expected, expected_means) = CASES[name], trained(name, "one device")
    assert np.abs(weights - expected).max() <= case.bound
    for key, value in expected_means.items():
        assert means[key] == pytest.approx(value, abs=max(case.bound * 10, 2e-5)), key


def assert_trained(name: str, weights: np.ndarray) -> None:
    """Asserts that training has moved the weights far beyond any tolerance of these tests."""
    assert np.abs(weights - untrained(repr(CASES[name].network), CASES[name].policy)).max() > 0.002


@functools.cache
def untrained(network: str, policy: str) -> np.ndarray:
    """Return the weights that every case with this network and precision begins with."""
    case = next(case for case in CASES.values() if (repr(case.network), case.policy) == (network, policy))
    return flat(build(case, STRATEGIES["one device"](), real_digits(64)).network)


@functools.cache
def trained(name: str, where: str) -> tuple[np.ndarray, dict[str, float]]:
    return run(CASES[name], STRATEGIES[where](), STEPS)


@pytest.mark.parametrize("name", sorted({name for name, _ in PAIRS}))
def test_a_case_trains(name: str) -> None:
    """Equal weights say something only where they have moved."""
    assert_trained(name, trained(name, "one device")[0])


@pytest.mark.parametrize(("name", "where"), PAIRS)
def test_a_strategy_equals_one_device(name: str, where: str) -> None:
    assert_equal(name, *trained(name, where))


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, np.ndarray]:
    """What two worker processes make of all cases."""
    path = tmp_path_factory.mktemp("workers") / "results.npz"
    codes, output = run_workers(2, "benchmarks.worker", str(path), str(STEPS), *ON_WORKERS, start=commands.start)
    assert codes == [0, 0], output
    return dict(np.load(path))


@pytest.mark.parametrize("name", ON_WORKERS)
def test_two_workers_equal_one_device(name: str, two_workers: Mapping[str, np.ndarray]) -> None:
    found = {key.rpartition("/")[2]: value for key, value in two_workers.items() if key.rpartition("/")[0] == name}
    weights = found.pop("weights")
    assert_equal(name, weights, {key: float(value) for key, value in found.items()})


@pytest.mark.parametrize("where", ["one device", "mirrored 2", "central_storage 2", "two workers"])
def test_an_overflow_in_one_replica_skips_one_step_everywhere(
    where: str, two_workers: Mapping[str, np.ndarray]
) -> None:
    """The image is one of an epoch, and the steps are those of one: one replica sees it, once."""
    if where == "two workers":
        weights = two_workers[f"{OVERFLOW}/weights"]
        means = {key: float(two_workers[f"{OVERFLOW}/{key}"]) for key in ("loss_scale", "skipped_steps")}
        assert float(two_workers[f"{NADAM}/skipped_steps"]) == 1
    else:
        weights, means = trained(OVERFLOW, where)
    assert (means["skipped_steps"], means["loss_scale"]) == (1, 2.0**14)
    assert_trained(OVERFLOW, weights)  # by the other steps


def by_numpy(built: Model, split: Split) -> tuple[np.ndarray, float]:
    """Return the confusion matrix and the mean loss of what a network answers."""
    outputs = built.network(tf.cast(split.images, tf.float32)).numpy().astype(np.float64)
    rows, labels = np.arange(len(split)), split.target_values
    confusion = np.zeros((10, 10), np.int64)
    np.add.at(confusion, (labels, outputs.argmax(axis=1)), 1)
    return confusion, (np.log(np.exp(outputs).sum(axis=1)) - outputs[rows, labels]).mean()


@pytest.mark.parametrize("where", ["mirrored 3", "central_storage 2", "model_parallel 2"])
def test_scores_equal_numpy_over_the_same_predictions(where: str) -> None:
    """Of one split after another: 101 examples in batches of 33, the last of which has two; others in between."""
    dataset, made = real_digits(101), STRATEGIES[where]()
    built = build(CASES["SGD, even batches"], made, dataset)
    scorer = Scorer(made, built)
    for split, batch_size in ((dataset.train, 33), (dataset.test, 256), (dataset.train, 7), (dataset.train, 33)):
        scores, (confusion, loss) = scorer.score(split, batch_size), by_numpy(built, split)
        assert scores.metrics["accuracy"] == np.trace(confusion) / len(split)
        assert scores.loss == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("where", ["mirrored 4", "central_storage 3"])
def test_means_equal_numpy_over_the_same_predictions(where: str) -> None:
    """With a learning rate of nearly nothing the model stays the same, so the means are those of one pass."""
    dataset, made = real_digits(133), STRATEGIES[where]()
    built = build(CASES["SGD, even batches"], made, dataset)
    given = settings(optimizer=SgdSettings(learning_rate=1e-12), batch_size=33)
    means, (confusion, loss) = start(made, built, dataset, given).run(0, 5), by_numpy(built, dataset.train)
    assert means["loss"] == pytest.approx(loss, abs=1e-6)
    assert means["accuracy"] == pytest.approx(np.trace(confusion) / 133, abs=1e-7)


def test_fixed_shapes_give_the_same_numbers() -> None:
    """What a TPU is given: batches of one shape, filled up with rows that count nothing."""
    case = CASES["SGD, a last batch of 1"]
    expected, _ = trained("SGD, a last batch of 1", "one device")
    settings = kinds.MirroredSettings(deterministic=False, cpu_replicas=4)
    found, _ = run(case, dataclasses.replace(strategy(settings), fixed_shapes=True), STEPS)
    assert np.abs(found - expected).max() <= case.bound


@pytest.mark.parametrize("error", [None, RuntimeError("Physical devices cannot be modified after being initialized")])
def test_gpus_give_memory_as_needed_before_tensorflow_starts_them(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TensorFlow has started already, such as in a notebook, they stay as they are."""
    calls: list[Any] = []

    def grow(gpu: Any, enable: bool) -> None:
        calls.append((gpu.name, enable))
        if error is not None:
            raise error

    def log_call(device_type: str | None = None) -> Any:
        calls.append("started")
        return logical(device_type)

    logical, physical = tf.config.list_logical_devices, tf.config.list_physical_devices
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(2)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else physical(kind))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", grow)
    monkeypatch.setattr(tf.config, "list_logical_devices", log_call)
    made = strategy(kinds.OneDeviceSettings(deterministic=False, device="/cpu:0"))
    assert made.devices[0].endswith("CPU:0")
    grown = [("/physical_device:GPU:0", True), ("/physical_device:GPU:1", True)]
    assert calls == [*(grown if error is None else grown[:1]), "started"]


def test_a_tpu_computes_in_bfloat16() -> None:
    """`mixed` asks the devices; XLA is left to the TPU, which compiles the whole step."""
    made = dataclasses.replace(STRATEGIES["default"](), devices=("/device:TPU:0",), fixed_shapes=True)
    assert resolve_policy("mixed", made) == "mixed_bfloat16"
    built = build(CASES["float64"], STRATEGIES["default"](), real_digits(64))
    assert not choose_jit(settings(), made, built)
    with pytest.raises(UserError, match="a TPU compiles the whole step itself"):
        choose_jit(settings(jit="on"), made, built)


def test_layers_variables_and_what_is_computed_are_on_their_devices() -> None:
    made = strategy(kinds.ModelParallelSettings(deterministic=False, cpu_replicas=3, layers={"dense*": "/cpu:3"}))
    dataset = real_digits(64)
    built = build(CASES["SGD, even batches"], made, dataset)
    loop = start(made, built, dataset, settings(optimizer=AdamSettings()))
    assert [variable.value.device[-1] for variable in built.network.trainable_variables] == list("001133")
    slots = [variable.value.device[-1] for variable in loop.state.slots]
    assert slots == list("000011113333")
    places = [(op.type, op.device[-1:]) for op in loop.step.gradients._function.graph.get_operations()]
    for kind, devices in {"Conv2D": "01", "Conv2DBackpropFilter": "01", "MaxPoolGrad": "01", "MatMul": "3"}.items():
        assert {place for op, place in places if op == kind} == {*devices}, kind
    one = built.on_one_device()
    np.testing.assert_array_equal(flat(one.network), flat(built.network))
    assert {v.value.device[-1] for v in one.network.weights} == {"0"}


class Odd(keras.Model):
    """A functional network with a loss or a step of its own."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


def odd(input_shape: tuple[int, ...], num_classes: int, batch_norm: bool = False) -> keras.Model:
    inputs = keras.Input(input_shape)
    outputs = keras.layers.Flatten()(inputs)
    outputs = keras.layers.BatchNormalization(synchronized=True)(outputs) if batch_norm else outputs
    return Odd(inputs, keras.layers.Dense(num_classes)(outputs))


def plain(input_shape: tuple[int, ...], num_classes: int, is_spectral: bool = False) -> keras.Model:
    """Return a network with a penalty before a synchronized BatchNorm, or with a weight that `call` assigns."""
    last = keras.layers.Dense(num_classes)
    inner = keras.layers.Dense(16, activity_regularizer=keras.regularizers.L2(0.1), kernel_regularizer="l2")
    layers = [keras.layers.Flatten(), inner, keras.layers.BatchNormalization(synchronized=True)]
    layers.append(keras.layers.SpectralNormalization(last) if is_spectral else last)
    return keras.Sequential([keras.Input(input_shape), *layers])


class Counting(keras.layers.Layer):
    """Adds noise without a seed, and keeps sums: of the examples, twice, and of the noise."""

    def build(self, shape: Any) -> None:
        given: dict[str, Any] = {"trainable": False, "aggregation": "sum"}
        self.sums = [self.add_weight((), "zeros", dtype, **given) for dtype in ("float32", "int32", "float32")]

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        noise = keras.random.normal(keras.ops.shape(inputs))
        rows = keras.ops.shape(inputs)[0]
        for total, increase in zip(self.sums, (rows, rows, keras.ops.sum(noise)), strict=True):
            total.assign(total + keras.ops.cast(increase, total.dtype))
        return inputs + noise


def counting(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    layers = [Counting(), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *layers])


@pytest.mark.parametrize("accumulation", [1, 2])
def test_noise_without_a_seed_and_sums_are_those_of_one_device(accumulation: int) -> None:
    train = {"optimizer": SgdSettings(accumulation=accumulation)}
    case = Case(examples=320, network={"_target_": f"{__name__}.counting"}, train=train)
    one, two = (run(case, STRATEGIES[where](), 5)[0] for where in ("default", "mirrored 3"))
    np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)
    [first] = run(case, STRATEGIES["default"](), 1)[0][2:3]
    assert list(one[:2]) == [320, 320]
    assert abs(one[2] - 5 * first) > 10  # each step has noise of its own


@pytest.mark.parametrize("is_of_keras", [True, False])
def test_draws_that_cannot_be_repeated_are_warned_of(is_of_keras: bool) -> None:
    tf.random.set_seed(1)  # needed where determinism is on
    random = keras.random if is_of_keras else tf.random
    noise = keras.layers.Lambda(lambda inputs: inputs + random.normal(tf.shape(inputs)))
    network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), noise, keras.layers.Dense(10)])
    dataset = real_digits(64)
    built = Model(network, dataset.task, "float32")
    telling = Telling()
    start(STRATEGIES["default"](), built, dataset, settings()).step.gradients.warn_of_draws(telling)
    assert ["RandomStandardNormal draws" in line for line in telling.warnings] == [True][is_of_keras:]


@pytest.mark.parametrize("is_of_keras", [True, False])
def test_draws_that_are_others_with_xla_are_warned_of(is_of_keras: bool) -> None:
    def noise(inputs: tf.Tensor) -> tf.Tensor:
        if is_of_keras:
            return inputs + keras.random.uniform(tf.shape(inputs), seed=1)
        return inputs + tf.random.stateless_uniform(tf.shape(inputs), [1, 2])

    prepare_random_layers()
    layers = [keras.layers.Flatten(), keras.layers.Lambda(noise), keras.layers.Dense(10)]
    network = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    dataset, said = real_digits(64), []
    for jit in (True, False):
        telling = Telling()
        loop = start(STRATEGIES["default"](), Model(network, dataset.task, "float32"), dataset, settings(), jit)
        loop.step.gradients.warn_of_draws(telling)
        said.append(["with train.jit=on and with train.jit=off" in line for line in telling.warnings])
    assert said == [[True][is_of_keras:], []]


@pytest.mark.parametrize("network", ["odd", "plain"])
def test_losses_of_the_network_s_own_are_honoured(network: str) -> None:
    case = Case(network={"_target_": f"{__name__}.{network}"}, train={"optimizer": SgdSettings()})
    one, _ = run(case, STRATEGIES["default"]())
    two, _ = run(case, STRATEGIES["mirrored 2"]())
    assert np.abs(one - two).max() <= 1e-6


def test_a_network_that_would_be_trained_wrong_is_refused() -> None:
    for kind, given, where, said in (
        ("odd", "batch_norm", "mirrored 2", "a synchronized BatchNorm and a custom compute_loss"),
        ("plain", "is_spectral", "default", r"assigns the trainable weight \S*dense_\d*/kernel in call.*train=fit"),
    ):
        case = Case(network={"_target_": f"{__name__}.{kind}", given: True}, train={"optimizer": SgdSettings()})
        with pytest.raises(UserError, match=said):
            run(case, STRATEGIES[where]())


@pytest.mark.smoke
def test_metrics_of_the_network_count_shared_rows_once() -> None:
    """51 examples in batches of 50 on four replicas: the last one goes to all four."""
    case = CASES["own loss, penalty and metric"]
    made = strategy(kinds.MirroredSettings(deterministic=False, cpu_replicas=4))
    dataset = real_digits(51)
    built = build(case, made, dataset)
    start(made, built, dataset, settings(batch_size=50)).run(0, 2)
    assert float(built.metrics[0].count.numpy()) == pytest.approx(51)


@pytest.mark.smoke
def test_what_cannot_be_placed_is_refused() -> None:
    made = STRATEGIES["model_parallel 2"]()
    with pytest.raises(UserError, match="model_parallel cannot distribute the layers of OwnLoss"):
        build(CASES["own loss, penalty and metric"], made, real_digits(64))
    wrong = strategy(kinds.ModelParallelSettings(deterministic=False, layers={"lstm*": "/cpu:0"}))
    with pytest.raises(UserError, match=r"lstm\* does not match any layer\. Expected one of: conv2d\w*, max_pooling2d"):
        build(CASES["SGD, even batches"], wrong, real_digits(64))
