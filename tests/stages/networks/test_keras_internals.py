"""What Keras does not export is as it was in the version that it was checked with. The first to fail on an upgrade.

What every training of this suite needs (layers within layers, nodes of a graph, moments of BatchNorm) has no test here.
"""

from functools import wraps
from typing import Any

import keras
import numpy as np
import pytest

from stages.networks import keras_internals as internals
from stages.networks.batch_norm import BatchNormalization


def functional() -> keras.Model:
    inputs = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="inner")], name="nested")
    return keras.Model(inputs, keras.layers.Dense(2, name="outer")(inner(inputs)))


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2, name="attribute")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


def test_the_version_is_the_one_that_the_module_names() -> None:
    assert f"Keras {'.'.join(keras.__version__.split('.')[:2])}," in (internals.__doc__ or "")


def test_graphs_of_layers_are_told_from_subclasses() -> None:
    network, sequential = functional(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    assert internals.is_graph_of_layers(network)
    assert internals.is_graph_of_layers(sequential)
    assert not internals.is_graph_of_layers(Subclass())
    assert internals.graph_of(network) is network
    below = internals.graph_of(sequential)
    assert below is not None
    assert sequential.layers[0] in below.layers
    assert internals.graph_of(keras.Sequential([keras.layers.Dense(2)])) is None
    assert internals.graph_of(Subclass()) is None


def test_what_is_set_untracked_is_no_layer() -> None:
    network, other = functional(), keras.layers.Dense(2)
    before = len(internals.all_layers(network))
    internals.set_untracked(network, "other", other)
    assert network.other is other
    assert len(internals.all_layers(network)) == before


def test_penalties_in_a_scope_are_those_of_its_call_alone() -> None:
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "tanh", kernel_regularizer="l2")])
    network.add(keras.layers.ActivityRegularization(l1=1.0))
    values = [(weight, weight.value) for weight in network.weights]
    with keras.StatelessScope(values, collect_losses=True) as scope:
        network(np.ones((1, 4), np.float32))
        expected = [float(penalty) for penalty in network.losses]
        with keras.StatelessScope(values, collect_losses=True):
            network(np.zeros((1, 4), np.float32))  # as another replica does
        assert [float(penalty) for penalty in internals.penalties_in(scope, network)] == expected


def test_a_replaced_function_of_the_backend_is_the_one_that_layers_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def noted(original: Any) -> Any:
        @wraps(original)
        def dropout(inputs: Any, rate: float, *args: Any, **kwargs: Any) -> Any:
            rates.append(rate)
            return original(inputs, rate, *args, **kwargs)

        return dropout

    random = internals.BACKEND["random"]
    monkeypatch.setattr(random, "dropout", getattr(random.dropout, "__wrapped__", random.dropout))
    for _ in range(2):
        internals.wrap_backend("random", "dropout", noted)
    keras.layers.Dropout(0.25)(np.ones((1, 4), np.float32), training=True)
    assert rates == [0.25]  # once: what is wrapped is not wrapped again


def test_batch_norm_asks_for_its_moments_where_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several replicas they are those of the whole batch. Keras' own would take minutes to trace."""
    asked = []

    class Noted(BatchNormalization):
        def _moments(self, inputs: Any, mask: Any) -> Any:
            asked.append(tuple(self._reduction_axes))
            return super()._moments(inputs, mask)

    Noted()(np.ones((4, 2, 3), np.float32), training=True)
    assert asked == [(0, 1)], (
        f"Keras {keras.__version__}: BatchNormalization no longer computes mean and variance by _moments. Look in "
        "keras/src/layers/normalization/batch_normalization.py, and change stages/networks/batch_norm.py"
    )


def test_an_optimizer_that_sums_gradients_elsewhere_is_an_error() -> None:
    """A replica passes the sum. If Keras summed it again, the gradients of two replicas would be doubled."""

    class Renamed(keras.optimizers.SGD):
        _all_reduce_sum_gradients = None

    with pytest.raises(RuntimeError, match=r"does not sum gradients in Optimizer\._all_reduce_sum_gradients"):
        internals.expect_summed_gradients(Renamed())
    optimizer = keras.optimizers.SGD()
    internals.expect_summed_gradients(optimizer)
    pairs = [(np.ones(2), None)]
    assert optimizer._all_reduce_sum_gradients(pairs) == pairs
