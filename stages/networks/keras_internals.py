"""Internals that Keras does not export, each as a function with a test that fails first on an upgrade.

Checked with Keras 3.15, on TensorFlow's backend.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import core, random
from keras.src.models import Functional
from keras.src.random import seed_generator
from keras.src.utils import naming

BACKEND = {"core": core, "random": random}


def all_layers(layer: keras.layers.Layer, include_self: bool = True, recursive: bool = True) -> list[Any]:
    """Return `layer` and the layers in it, also those in attributes and in wrappers, which `Model.layers` leaves out.

    Keras 3.15: `Layer._flatten_layers`.
    """
    return list(layer._flatten_layers(include_self=include_self, recursive=recursive))


def is_graph_of_layers(network: keras.Model) -> bool:
    """Return whether `network` is sequential or functional, not a subclass, which `clone_model` would reduce to that.

    Keras 3.15: `keras.src.models.Functional` is the class that `keras.Model(inputs, outputs)` makes.
    """
    return type(network) in (keras.Sequential, Functional)


def graph_of(network: keras.Model) -> Functional | None:
    """Return the functional graph of `network`, below it if it is sequential; None where it has none.

    Keras 3.15: `Sequential._functional`, None until it is built.
    """
    graph = getattr(network, "_functional", network)
    return graph if isinstance(graph, Functional) else None


def nodes_of(graph: Functional) -> list[Any]:
    """Return the calls of layers in `graph`: each with `operation`, `input_tensors` and `output_tensors`.

    Keras 3.15: `Function._nodes_by_depth`.
    """
    return [node for depth in graph._nodes_by_depth.values() for node in depth]


def inputs_of(network: keras.Model) -> list[Any]:
    """Return the inputs that `network` declares, each with a `dtype`; none where it has no graph.

    Keras 3.15: `Functional.inputs`, whose order is that of the flattened structure.
    """
    graph = graph_of(network)
    return [] if graph is None else list(graph.inputs)


def set_untracked(layer: keras.layers.Layer, name: str, value: object) -> None:
    """Set an attribute that Keras neither counts among the layers and weights of `layer` nor saves.

    Keras 3.15: `Layer.__setattr__` hands every value to a tracker.
    """
    layer.__dict__[name] = value


def loss_of(network: keras.Model, *given: Any) -> Any:
    """Return the network's own `compute_loss` of x, y, y_pred, sample_weight and, where it takes it, `training`.

    Keras 3.15: `Trainer._compute_loss`.
    """
    return network._compute_loss(*given)


def penalties_in(scope: keras.StatelessScope, network: keras.Model) -> list[Any]:
    """Return what `network`, called in `scope`, adds to the loss: `Model.losses` are those of the last caller, which
    may be another replica.

    Keras 3.15: `StatelessScope.losses` and `Layer._get_regularization_losses`.
    """
    return [*scope.losses, *network._get_regularization_losses()]


def expect_summed_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Have `optimizer.apply` take gradients that are already summed over the replicas.

    Keras 3.15: `TFOptimizer._all_reduce_sum_gradients`, which returns pairs of gradient and variable.

    Raises:
        RuntimeError: If Keras has no such method, so that gradients would be summed twice without an error.
    """
    if not callable(getattr(optimizer, "_all_reduce_sum_gradients", None)):
        raise RuntimeError(
            f"Keras {keras.__version__} does not sum gradients in Optimizer._all_reduce_sum_gradients, as Keras 3.15 "
            "does. Look in keras/src/backend/tensorflow/optimizer.py where it sums them, and change "
            "stages/networks/keras_internals.py so that it does not"
        )
    optimizer._all_reduce_sum_gradients = list


def count_in_place(optimizer: keras.optimizers.Optimizer) -> None:
    """Have `optimizer` count steps in one operation: Keras reads, adds and writes, so that workers lose counts.

    Keras 3.15: `Variable.assign_add`.
    """
    iterations = optimizer.iterations
    iterations.assign_add = lambda value: iterations.value.assign_add(tf.cast(value, iterations.value.dtype))


def write_from_any_replica(variables: Sequence[keras.Variable | tf.Variable]) -> None:
    """Have replicas that share `variables`, as under central storage, assign the value that each of them has.

    TensorFlow 2.21: an `AggregatingVariable` without an aggregation refuses assignments in a replica.
    """
    for variable in variables:
        value = getattr(variable, "value", variable)
        if type(value).__name__ == "AggregatingVariable":
            value._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def slots_of(optimizer: keras.optimizers.Optimizer, variable: tf.Variable, *names: str) -> list[tf.Variable]:
    """Return what `optimizer` keeps for `variable`, or a copy of it, under `names`: a variable of each.

    Keras 3.15: lists such as `Adam._momentums`, in the order of `Optimizer._get_variable_index`.
    """
    index = optimizer._get_variable_index(variable)
    return [getattr(optimizer, name)[index].value for name in names]


def untracked_variables(owner: keras.optimizers.Optimizer | keras.layers.Layer, tracked: Sequence[Any]) -> list[str]:
    """Return attributes with variables, or optimizers, that are not in `tracked`, and so in no checkpoint either.

    Keras 3.15: `Optimizer.add_variable` and `Layer.add_weight` track the variables they make; `_trainable_variables` of
    an optimizer are the network's, and `optimizer` of a network is the training's.
    """
    ids = {id(getattr(variable, "value", variable)) for variable in tracked}
    names = []
    for name, attribute in vars(owner).items():
        if name in ("_trainable_variables", "_variables", "_tracker", "optimizer") or name.startswith("_self_"):
            continue  # the last ones are of Trackable
        if any(id(getattr(variable, "value", variable)) not in ids for variable in _variables_in(attribute)):
            names.append(name)
    return names


def is_built(metric: keras.metrics.Metric) -> bool:
    """Return whether `metric` has its variables: some make them at their first use.

    Keras 3.15: `_built` of F1Score, R2Score and AUC.
    """
    return bool(metric.variables) and getattr(metric, "_built", True)


def _variables_in(value: object) -> list[Any]:
    if isinstance(value, (keras.Variable, tf.Variable)):
        return [value]
    if isinstance(value, keras.optimizers.Optimizer):
        return list(value.variables)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple, set)) else ()
    return [variable for part in parts for variable in _variables_in(part)]


def preprocess_input_of(application: Callable[..., keras.Model]) -> Callable[..., Any]:
    """Return the `preprocess_input` that belongs to a function of keras.applications.

    Keras 3.15: both are in the same module of `keras.src.applications`.
    """
    return sys.modules[application.__module__].preprocess_input


def reset_names() -> None:
    """Count names of layers from the beginning, as in a process that has made none.

    Keras 3.15: `keras.src.utils.naming.reset_uids`; `keras.backend.clear_session` also drops graphs and seeds.
    """
    naming.reset_uids()


def keep_names(names: Iterable[str]) -> None:
    """Have Keras give others than `names` to layers and operations without one: a graph has each name once.

    Keras 3.15: `keras.src.utils.naming.uniquify` counts how often a name was asked for, and appends that.
    """
    asked = global_state.get_global_attribute("object_name_uids", defaultdict(int), set_to_default=True)
    for name in names:
        stem, _, number = name.rpartition("_")
        asked[name] = max(asked[name], 1)
        if number.isdecimal():
            asked[stem] = max(asked[stem], int(number) + 1)


def one_line(error: object, longest: int = 240) -> str:
    """Return a message of Keras in one line, cut at `longest` characters."""
    return " ".join(str(error).split())[:longest]


def seed_states(network: keras.Model) -> list[keras.Variable]:
    """Return the states of the random layers in `network`, then that of all draws without a seed; int [2] each.

    Keras 3.15: the name that `SeedGenerator` gives its state, and `seed_generator.global_seed_generator`.
    """
    own = [variable for variable in network.variables if variable.path.endswith("seed_generator_state")]
    return [*own, seed_generator.global_seed_generator().state]


def next_seed(seed: int | keras.random.SeedGenerator | None) -> tf.Tensor:
    """Return the next seed of a random layer, int32 [2], as functions of `keras.random` take it.

    Keras 3.15: `keras.src.random.seed_generator.draw_seed`, then `_cast_seed` of the backend's `random`.
    """
    return random._cast_seed(seed_generator.draw_seed(seed))


def noise_dimensions(inputs: tf.Tensor, noise_shape: Sequence[Any] | None) -> list[Any]:
    """Return the sizes of the noise for dropout of `inputs`: numbers where they are fixed, else int32 [].

    Keras 3.15: `_get_concrete_noise_shape` of the backend's `random`; None in `noise_shape` is the size of `inputs`.
    """
    sizes = keras.ops.shape(inputs)
    return [own if size is None else size for size, own in zip(noise_shape or [None] * len(sizes), sizes, strict=True)]


def wrap_backend(module: str, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function of Keras' backend by `wrap(function)` in this process; no-op once it has been.

    Keras 3.15: layers, initializers and `keras.ops` call `core.cast` and the functions of `random` by their module.

    Args:
        module: `core` or `random`.
        wrap: returns a function made by `functools.wraps`.
    """
    function = getattr(BACKEND[module], name)
    if not hasattr(function, "__wrapped__"):
        setattr(BACKEND[module], name, wrap(function))
