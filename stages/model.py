"""The `model` stage: builds the network in the strategy's scope, in the configured precision."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from stages.checkpoints.saved import digests_of_run, known_examples
from stages.data.examples import first_inputs, spec_of
from stages.errors import UserError
from stages.features.encoder import edges, sizes
from stages.features.images import ImageFeature, images_of
from stages.features.texts import TextFeature
from stages.networks.complexity import flops, write_summary
from stages.networks.encoders import Encoder, encoders_of, join_encoders
from stages.networks.joined import TableFacts, series_facts
from stages.networks.keras_internals import (
    all_layers,
    inputs_of,
    is_built,
    keep_names,
    one_line,
    reset_names,
    untracked_variables,
)
from stages.networks.model_parallel import place
from stages.networks.precision import cast_exactly, keras_floats, set_layer_policies
from stages.networks.random_layers import prepare_random_layers
from stages.networks.rescaling import facts, for_pixels_of, recorded, with_scaling
from stages.reporter import Reporter
from stages.results import Dataset, Model, Normalization, Record, Strategy
from stages.seeds import derive
from stages.settings.model import KerasHubSettings, ModelSettings, PrecisionSettings
from stages.settings.places import content_digest
from stages.settings.train import TaskSettings
from stages.targets import arguments_of, import_target, target_of
from stages.tasks.chosen import chosen_task
from stages.tasks.forecast import ForecastTargets
from stages.tasks.members import with_members
from stages.tasks.parts import Head
from stages.tasks.task import Task
from stages.tasks.window_classes import WindowClassTargets
from stages.transfer.pretrained import freeze, load_weights


def model(
    dataset: Dataset,
    strategy: Strategy,
    settings: ModelSettings,
    reporter: Reporter | None = None,
    folder: Path | None = None,
) -> Model:
    """Return a model whose first layer scales the pixels and whose weights are a function of the seed.

    In every precision the weights are those of float32, rounded to the variable's dtype.

    Args:
        reporter: logs if the pixels are scaled differently from what the network was made for.
        folder: the run's; takes `model/summary.txt`.

    Raises:
        UserError: where the network cannot be found or built, its weights cannot be loaded or do not fit, or its output
            is not float32 [b, classes].
    """
    tf.config.experimental.enable_tensor_float_32_execution(settings.precision.tf32)  # from now on, in this process
    own = resolve_policy(settings.precision.policy, strategy)
    patterns = {name: resolve_policy(policy, strategy) for name, policy in settings.precision.layers.items()}
    policy = PrecisionSettings(policy=own, layers=patterns).lowest  # with float16 in any layer the loss is scaled
    layers = strategy.layers
    chosen = settings.task if isinstance(settings.task, TaskSettings) else TaskSettings()
    task = chosen_task(dataset.task, chosen, dataset.train.targets).of_network(settings.outputs)
    function = import_target(str(target_of(settings.network)))
    arguments = arguments_of(settings.network)
    encoders = encoders_of(dataset.features, settings.encoders, takes_vectors(function))
    scalings = {
        name: _scaling(encoders.get(name, Encoder(function, arguments)), name, images, dataset, reporter or Reporter())
        for name, images in images_of(dataset.features).items()
    }

    def build(placed: bool, policy: str = own, patterns: Mapping[str, str] = patterns) -> keras.Model:
        with keras_floats(policy):
            if patterns:
                reset_names()  # a network that is built again has the same
            network = _build(function, arguments, dataset, task.head, encoders, settings.encoder_width)
            set_layer_policies(network, patterns)
            if placed and layers is not None:
                network = place(network, strategy.devices, layers)
            return _scaled(scalings, dataset, network, policy)

    def build_on_one_device(policy: str = own, patterns: Mapping[str, str] = patterns) -> keras.Model:
        with tf.device("/cpu:0"):
            return build(placed=False, policy=policy, patterns=patterns)

    prepare_random_layers()
    cast_exactly()
    seed = derive(settings.seed, "model")
    keras.utils.set_random_seed(seed)
    with strategy.distribution.scope(), tf.device("/cpu:0" if layers is not None else None):
        network = build(placed=True)
    if own in ("float64", "bfloat16", "float16"):  # TensorFlow draws other numbers for each dtype of a variable
        keras.utils.set_random_seed(seed)
        network.set_weights(build_on_one_device("float32", {}).get_weights())
    _refuse_own_loss(network, dataset)
    _refuse_untracked(network, task)
    loaded = load_weights(network, settings)
    if settings.frozen:
        freeze(network)
    if not network.trainable_variables:
        raise UserError(f"{network.name} has no trainable weights", "at least one", "trainable layers")
    outputs = network(first_inputs(dataset.train, 2), training=False)
    if (members := _members(outputs, task)) is not None:
        task = with_members(task, members)
    _check_outputs(outputs, task, policy)
    tf32 = _tf32(strategy, own, reporter or Reporter())
    params = {
        **loaded,
        **{f"task_{name}": str(value) for name, value in task.described.items() if name != "primary"},
        "outputs": settings.outputs,
        "policy": own,
        "tf32": tf32,
        **({"preset": content_digest(arguments["preset"])} if isinstance(settings.network, KerasHubSettings) else {}),
        **recorded({name: one for name, one in scalings.items() if one != dataset.scalings.get(name)}),
    }
    is_of_run = settings.weights not in ("none", "imagenet")
    trained_on = digests_of_run(Path(settings.weights).expanduser()) if is_of_run else None
    known = known_examples(trained_on, dataset.test, f"model.weights={settings.weights}", reporter or Reporter())
    record = _record(network, params, folder, known)
    split = layers is not None or strategy.coordinator is not None
    metrics = tuple(network.core.metrics)
    rebuild = build_on_one_device if split else None
    in_step = tuple(transform for transform in dataset.transforms if transform.in_step)
    in_float32 = partial(build_on_one_device, "float32", {})
    return Model(network, task, policy, metrics, rebuild, record, in_step, in_float32, trained_on, tf32 == "on")


def _record(network: keras.Model, params: Mapping[str, Any], folder: Path | None, facts: Mapping[str, int]) -> Record:
    """Return the record of the network's size and of `facts`, and write its summary."""
    counts: dict[str, Any] = {
        "parameters": network.count_params(),
        "trainable_parameters": int(sum(np.prod(w.shape) for w in network.trainable_weights)),
    }
    try:
        counts["flops"] = flops(network)
    except Exception as error:  # a network may be anything, and a figure is not worth a run
        params = {**params, "flops": f"unknown: {type(error).__name__}"}
    files = {}
    if folder is not None:
        files["model"] = folder / "model" / "summary.txt"
        write_summary(network, files["model"])
    return Record(params={**counts, **params}, files=files, summary={"parameters": counts["parameters"], **facts})


def takes_vectors(function: Callable[..., keras.Model]) -> bool:
    """Return whether a function builds one of the project's networks of columns, which take vectors, not images."""
    parameters = signature(function).parameters
    takes = {"categories", "series", "table"} & {*parameters}
    return function.__module__.startswith("stages.networks.") and bool(takes)


def _scaling(encoder: Encoder, name: str, images: ImageFeature, dataset: Dataset, reporter: Reporter) -> Normalization:
    """Return the scaling of a feature: the one that its network declares, unless the user chooses another.

    A network's function declares it by an attribute `preprocessing`: another function, of the same settings, that
    returns the Normalization of RGB pixels of 0 to 255, or None.
    """
    chosen = dataset.scalings.get(name, Normalization())
    preprocessing = getattr(encoder.function, "preprocessing", None)
    required = preprocessing(**encoder.arguments) if preprocessing is not None else None
    if required is None:
        return chosen
    of_network = for_pixels_of(required, images)
    if chosen.automatic:
        return of_network
    if facts(chosen) != facts(of_network):
        network = encoder.arguments.get("name", getattr(encoder.function, "__name__", "the network"))
        reporter.log(f"{network} was made for pixels that are scaled differently; normalize=auto scales them that way")
    return chosen


def resolve_policy(policy: str, strategy: Strategy) -> str:
    """Return the Keras policy that `policy` means on the strategy's devices.

    `mixed` is float16 where every device is a GPU with tensor cores (compute capability 7.0 and up), else bfloat16,
    on TPUs too.
    """
    if policy != "mixed":
        return policy
    return "mixed_float16" if _lowest_capability(strategy) >= (7, 0) else "mixed_bfloat16"


def _lowest_capability(strategy: Strategy) -> tuple[int, int]:
    """Return the lowest compute capability of the GPUs that the strategy uses; (0, 0) if it uses other devices."""
    gpus = [gpu for gpu in tf.config.list_physical_devices("GPU") if any("GPU" in name for name in strategy.devices)]
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return min((detail.get("compute_capability", (0, 0)) for detail in details), default=(0, 0))


def _tf32(strategy: Strategy, policy: str, reporter: Reporter) -> str:
    """Return whether float32 is computed in TF32, `on` or `off`; log a line where it could be and is not."""
    is_set = tf.config.experimental.tensor_float_32_execution_enabled()  # a network's own code may have changed it
    if is_set and strategy.coordinator is not None:
        return "on in workers whose GPUs support it"
    is_supported = _lowest_capability(strategy) >= (8, 0)
    if is_supported and not is_set and policy == "float32":
        reporter.log("float32 is computed in full precision. precision.tf32=true or precision=mixed is faster here")
    return "on" if is_set and is_supported else "off"


def _build(  # everything that a network is built from
    function: Callable[..., keras.Model],
    arguments: Mapping[str, Any],
    dataset: Dataset,
    head: Head,
    encoders: Mapping[str, Encoder],
    width: int,
) -> keras.Model:
    """Return the network that a function builds, behind the encoders of images and texts, if there are any.

    The function is called with the shape of the inputs and the number of outputs. If it has a parameter `categories`
    or `output_shape`, it also receives the sizes of the vocabularies or the shape of the outputs of an example, such as
    that of a map.
    """
    name = f"{function.__module__}.{getattr(function, '__name__', '')}"
    specs = spec_of(dataset).inputs
    categories = sizes(dataset.features)
    built = _built(encoders, {name: specs[name] for name in encoders}, width, categories)
    shapes = {key: (width,) if key in built else tuple(spec.shape[1:]) for key, spec in specs.items()}
    categories = {key: count for key, count in categories.items() if key not in built}
    shape = shapes if len(shapes) > 1 or categories else next(iter(shapes.values()))
    keep_names(shapes)
    parameters = signature(function).parameters
    taken = parameters.get("categories")  # of the project's, texts need it, and images have none
    is_of_columns = taken is not None or bool({"series", "table"} & {*parameters})
    kind = "image" if not is_of_columns else "text" if taken is not None and taken.default is taken.empty else ""
    lacks = {
        "image": not images_of(dataset.features),
        "text": not any(isinstance(one, TextFeature) for one in dataset.features.values()),
    }
    if function.__module__.startswith("stages.networks.") and lacks.get(kind):
        given = ", ".join(f"{key} ({feature.kind})" for key, feature in [*dataset.features.items()][:5])
        problem = f"{name} requires {kind}s, but {dataset.name} has {given}"
        raise UserError(problem, "a network for these features", "model=auto")
    if function.__module__.startswith("stages.networks."):
        if kind == "image" and len(shapes) > 1:
            problem = f"{name} takes one image and nothing else, but {dataset.name} has {', '.join(shapes)}"
            raise UserError(problem, "a network of columns, in which each image has an encoder", "model=auto")
        _refuse_other_shape(name, parameters.get("output_shape"), head)
    if isinstance(shape, dict) and taken is not None:
        arguments = {**arguments, "categories": categories}
    known: dict[str, Any] = {"output_shape": head.shape}
    known["table"] = TableFacts(categories, edges(dataset.features), len(dataset.train))
    targets = dataset.task.targets
    season = targets.season if isinstance(targets, ForecastTargets) else 1
    has_past = isinstance(targets, WindowClassTargets) and targets.has_past
    known["series"] = series_facts(dataset.features, len(dataset.task.names), categories, season, has_past)
    arguments = {**arguments, **{name: value for name, value in known.items() if name in parameters}}
    try:
        network = function(shape, head.units, **arguments)
    except (ValueError, tf.errors.InvalidArgumentError) as error:  # layers that do not fit, or a dtype
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{name} cannot be built for {', '.join(shapes)} of shape {shape} with {dict(arguments)} ({reason})",
            "arguments that the network accepts, and inputs that are large enough for its layers",
            "model=auto",
        ) from error
    if not isinstance(network, keras.Model):
        raise UserError(f"{name} returned {network!r:.100}", "a keras.Model", "return keras.Model(inputs, outputs)")
    return join_encoders(network, built, _inputs(specs)) if built else network


def _built(
    encoders: Mapping[str, Encoder], specs: Mapping[str, tf.TensorSpec], width: int, categories: Mapping[str, int]
) -> dict[str, keras.Model]:
    """Return the networks of the encoders."""
    networks = {}
    for name, encoder in encoders.items():
        shape = tuple(specs[name].shape[1:])
        try:
            networks[name] = encoder.build(name, shape, width, categories.get(name))
        except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
            raise UserError(
                f"the encoder of {name}, of shape {shape}, cannot be built ({one_line(error)})",
                f"a network that returns a vector of {width} numbers, and inputs that are large enough for its layers",
                "model.encoders={}",
            ) from error
    return networks


def _inputs(specs: Mapping[str, tf.TensorSpec]) -> dict[str, keras.KerasTensor]:
    return {name: keras.Input(spec.shape[1:], dtype=spec.dtype.name, name=name) for name, spec in specs.items()}


def _refuse_other_shape(name: str, output_shape: Parameter | None, head: Head) -> None:
    """Refuse a network of the project that returns a map, or one vector, for targets that need the other.

    Args:
        name: The function that builds the network.
        output_shape: Its parameter of this name. Without a default, the network always returns a map.
        head: The head of the task.
    """
    is_map = len(head.shape) > 1
    if is_map and output_shape is None:
        problem = f"{name} returns one vector per image, but the targets need outputs of shape {head.shape}"
        raise UserError(
            problem, "a network that returns a map: model=unet, or a network of keras.applications", "model=unet"
        )
    if not is_map and output_shape is not None and output_shape.default is output_shape.empty:
        problem = f"{name} returns a map, but the targets need {head.units} outputs per image"
        raise UserError(problem, "a network that returns one vector per image", "model=auto")


def _scaled(scalings: Mapping[str, Normalization], dataset: Dataset, network: keras.Model, policy: str) -> keras.Model:
    """Return `network` behind its inputs and the layer that scales its pixels.

    Raises:
        UserError: where it cannot take them, or would lose what is behind the point.
    """
    specs = spec_of(dataset).inputs
    named = ", ".join(specs)
    fix = f"keras.Input({', '.join(str(tuple(spec.shape[1:])) for spec in specs.values())})"
    of_images = [value for value in inputs_of(network) if len(specs) == 1 or value.name in scalings]
    whole = [str(value.dtype) for value in of_images if "float" not in str(value.dtype)]
    if whole and scalings:
        problem = f"the network has an input of dtype {whole[0]}, but scaled pixels are float32"
        raise UserError(problem, "an input of dtype float32", fix)
    try:
        return with_scaling(scalings, _inputs(specs), network, policy)
    except ValueError as error:  # Keras' error for inputs that do not fit
        shapes = ", ".join(f"{name} of shape {tuple(spec.shape[1:])}" for name, spec in specs.items())
        expected = f"{'a single input, ' if len(specs) == 1 else 'inputs by name: '}{shapes}"
        raise UserError(f"the network does not accept the {named} ({one_line(error)})", expected, fix) from error


def _refuse_own_loss(network: keras.Model, dataset: Dataset) -> None:
    if network.has_own_loss and (dataset.train.weights is not None or dataset.combines_examples):
        raise UserError(
            f"{type(network.core).__name__} overrides compute_loss, which is not supported with MixUp, CutMix or "
            "example weights: it may not handle mixed labels, and Keras divides weighted losses by the number of "
            "examples",
            "a network without compute_loss, or examples without weights, MixUp and CutMix",
            "augment.mixup=0 augment.cutmix=0",
        )


def _refuse_untracked(network: keras.Model, task: Task) -> None:
    network.core.compiled = False  # training compiles it again: metrics of an earlier time are none of its own
    for layer in all_layers(network):
        if type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Model):
            continue  # such as the tables of a StringLookup
        if untracked := untracked_variables(layer, network.variables):
            raise UserError(
                f"{layer.name} has variables that checkpoints would not include: {', '.join(untracked)}",
                "variables that add_weight creates in build, and no optimizer in the layer",
            )
    for metric in network.core.metrics:
        if metric.name in task.measured and type(network.core).train_step is keras.Model.train_step:
            raise UserError(
                f"the network and the task both have a metric named {metric.name}",
                "a different name",
                f"name=own_{metric.name}",
            )
        if not is_built(metric):
            raise UserError(
                f"the network's metric {metric.name} creates its variables when it is first used, which is too late "
                "for the training step",
                "a metric whose variables already exist",
                f"{metric.name}.update_state(zeros, zeros) and reset_state() where it is created, or task.metrics",
            )


def _members(outputs: Any, task: Task) -> int | None:
    """Return the number of members whose outputs, [b, members, ...], a network returns; None for a single model."""
    shape = tuple(outputs.shape[1:]) if tf.is_tensor(outputs) else ()
    return int(shape[0]) if len(shape) > 1 and shape[1:] == task.head.shape else None


def _check_outputs(outputs: tf.Tensor, task: Task, policy: str) -> None:
    """Refuse outputs for two examples that are not what `task` takes."""
    units, shape = task.head.units, (2, *task.head.shape)
    dtype = "float64" if policy == "float64" else "float32"
    if not tf.is_tensor(outputs) or outputs.shape != shape or outputs.dtype.name != dtype:
        shown = (
            f"{outputs.dtype.name} of shape {tuple(outputs.shape)}" if tf.is_tensor(outputs) else f"{outputs!r:.200}"
        )
        last = f'Dense({units}, dtype="{dtype}")' if len(shape) == 2 else f'Conv2D({units}, 1, dtype="{dtype}")'
        raise UserError(
            f"for two examples, the network returns {shown}",
            f"a single output, {dtype} of shape {shape}",
            f"a last layer keras.layers.{last}",
        )
    task.head.check(outputs.numpy())
