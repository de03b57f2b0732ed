"""Advice of networks, training, evaluation and export, which is given while a run goes on."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from benchmarks.cases import engine_of, setup_of
from stages.callbacks import build_callbacks
from stages.checkpoints.files import Checkpoint
from stages.checkpoints.progress import Progress
from stages.checkpoints.saved import restore_trained, save_trained
from stages.data.split import Split
from stages.debug import OverfitSettings, overfit
from stages.errors import UserError
from stages.evaluation.against import check_comparable
from stages.evaluation.by_column import check_settings, check_slices
from stages.evaluation.predictions import check_finite, check_inputs, check_other
from stages.exporters import fresh_process
from stages.exporters.comparison import Compared, _compared
from stages.exporters.keras_file import KerasFile
from stages.exporters.litert import LiteRT
from stages.networks.joined import SeriesFacts
from stages.networks.model_parallel import place
from stages.networks.precision import set_layer_policies
from stages.networks.series import nbeats
from stages.normalize import normalize
from stages.optimization.optimizers import build_optimizer, decay_excluded
from stages.optimization.xla import choose_jit
from stages.reporter import Reporter
from stages.results import Dataset, Model, Strategy, Trained
from stages.settings.data import NormalizeSettings
from stages.settings.model import ApplicationSettings, CnnSettings, MlpSettings, ModelSettings, UnetSettings
from stages.settings.results import EvaluateSettings
from stages.settings.strategy import OneDeviceSettings
from stages.settings.train import (
    AutoTaskSettings,
    CosineSettings,
    CustomOptimizerSettings,
    RegressionSettings,
)
from stages.strategy import strategy
from stages.tasks.chosen import chosen_task
from stages.tasks.classification import classification
from stages.tasks.multi_label import multi_label
from stages.tasks.regression import NumberTargets, regression
from stages.train import train
from stages.training.keras_fit import KerasFit
from stages.training.outcome import diverged, report_completed, too_large
from stages.training.parameter_server import ParameterServer
from stages.training.phases import plan_phases, starting_phase
from stages.training.resume import Resumable
from stages.transfer.pretrained import freeze, load_weights
from tests.pipeline.advice import Case
from tests.stages.evaluation import made
from tests.stages.experiments import (
    built_of,
    mirrored,
    model_parallel,
    one_device,
    real_digits,
    settings,
    small_cnn,
    start,
    streamed,
    table_of,
    with_a_column,
)  # fmt: skip

CLASSES = classification(("a", "b", "c"))

LABELS = np.array([0, 1, 2, 1], np.int32)

NUMBERS = np.array([[1.0], [2.0], [4.0], [3.0]], np.float32)


def _refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> UserError:
    """Return the error that a call raises."""
    with pytest.raises(UserError) as raised:
        call(*arguments, **named)
    return raised.value


def _dense(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(3)])


def _normalized() -> keras.Model:
    """Return a network whose backbone has a layer that Keras adapts."""
    return _dense(keras.Sequential([keras.Input((2,)), keras.layers.Normalization()], name="backbone"))


class OwnStep(keras.Sequential):
    """A network with a step of its own."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def own_step(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    return OwnStep([keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)])


class Largest(keras.metrics.Metric):
    """The largest output, which cannot be computed from sums."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self) -> Any:
        return self.value


def of_logits(y_true: Any, y_pred: Any, from_logits: bool = True) -> Any:
    return keras.losses.categorical_crossentropy(y_true, y_pred, from_logits)


def _callback(given: str, **changes: Any) -> tuple[UserError, str]:
    return _refusal(build_callbacks, settings(**changes), CLASSES, Reporter()), given


def _unknown_metric(folder: Path) -> tuple[UserError, str]:
    return _callback("train.monitor=val_auc", monitor="val_auc")


def _two_rates(folder: Path) -> tuple[UserError, str]:
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    return _callback("schedule=cosine", callbacks=[callback], schedule=CosineSettings())


def _clipped_twice(folder: Path) -> tuple[UserError, str]:
    optimizer = CustomOptimizerSettings(_target_="keras.optimizers.Lion", arguments={"clipnorm": 1.0}, clip_norm=1.0)
    given = "optimizer=custom optimizer._target_=keras.optimizers.Lion '+optimizer.arguments={clipnorm: 1.0}'"
    return _refusal(build_optimizer, optimizer, 0.1), f"{given} optimizer.clip_norm=1"


def _no_such_weight(folder: Path) -> tuple[UserError, str]:
    return _refusal(decay_excluded, _dense(), ["nope"]), "'optimizer.decay_exclude=[nope]'"


def _no_such_device(folder: Path) -> tuple[UserError, str]:
    given = OneDeviceSettings(deterministic=False, device="/gpu:99")
    return _refusal(strategy, given), "strategy=one_device strategy.device=/gpu:99"


def _other_task(folder: Path) -> tuple[UserError, str]:
    return _refusal(chosen_task, CLASSES, RegressionSettings(), LABELS), "task=regression"


def _no_sum(folder: Path) -> tuple[UserError, str]:
    target = f"{__name__}.Largest"
    given = AutoTaskSettings(metrics=[{"_target_": target}])
    return _refusal(chosen_task, CLASSES, given, LABELS), f"'task.metrics=[{{_target_: {target}}}]'"


def _not_probabilities(folder: Path) -> tuple[UserError, str]:
    labels = multi_label(("a", "b", "c")).of_network("probabilities")
    outputs = np.array([[2.0, -1.0, 0.0]], np.float32)
    return _refusal(labels.head.check, outputs), "model.outputs=probabilities"


def _not_logits(folder: Path) -> tuple[UserError, str]:
    outputs = np.array([[0.2, 0.5, 0.3]], np.float32)
    return _refusal(CLASSES.head.check, outputs), "model.outputs=logits"


def _few_class_weights(folder: Path) -> tuple[UserError, str]:
    return _refusal(CLASSES.for_training, settings(class_weights=[1, 2]), LABELS), "'train.class_weights=[1,2]'"


def _loss_of_logits(folder: Path) -> tuple[UserError, str]:
    target = f"{__name__}.of_logits"
    task = chosen_task(CLASSES, AutoTaskSettings(loss={"_target_": target, "from_logits": True}), LABELS)
    given = f"task.loss._target_={target} task.loss.from_logits=true model.outputs=probabilities"
    return _refusal(task.of_network, "probabilities"), given


def _smoothed_numbers(folder: Path) -> tuple[UserError, str]:
    task = NumberTargets.of(("x",), NUMBERS).task()
    return _refusal(task.for_training, settings(label_smoothing=0.1), NUMBERS), "train.label_smoothing=0.1"


def _smoothed_own_loss(folder: Path) -> tuple[UserError, str]:
    target = "keras.losses.CategoricalCrossentropy"
    task = chosen_task(CLASSES, AutoTaskSettings(loss={"_target_": target, "from_logits": True}), LABELS)
    given = f"task.loss._target_={target} task.loss.from_logits=true train.label_smoothing=0.1"
    return _refusal(task.for_training, settings(label_smoothing=0.1), LABELS), given


def _own_step(folder: Path) -> tuple[UserError, str]:
    target, data, where = f"{__name__}.own_step", real_digits(64), one_device()
    model = built_of({"_target_": target}, data, where)
    return _refusal(train, model, data, where, settings()), f"model=auto model.network._target_={target}"


def _diverged(folder: Path) -> tuple[UserError, str]:
    return diverged(Progress(step=3), settings(), "the loss is nan"), "optimizer.learning_rate=0.01"


def _no_epoch_left(folder: Path) -> tuple[UserError, str]:
    return _refusal(report_completed, Progress(epoch=2), 2, Reporter()), "train.epochs=2"


def _too_large(folder: Path) -> tuple[UserError, str]:
    return too_large(64, tf.errors.ResourceExhaustedError(None, None, "no memory")), "train.batch_size=64"


def _nothing_frozen(folder: Path) -> tuple[UserError, str]:
    return _refusal(plan_phases, _dense(), settings(fine_tune_epochs=1)), "model=application train.fine_tune_epochs=1"


def _fine_tunes(folder: Path) -> tuple[UserError, str]:
    checkpoint = Checkpoint({"progress": asdict(Progress(epoch=3, phase=1))}, {})
    plans = plan_phases(_dense(), settings())
    return _refusal(starting_phase, checkpoint, plans), "train.fine_tune_epochs=0"


def _with_number() -> tuple[Dataset, Strategy]:
    return with_a_column(64), one_device()


def _no_such_feature(folder: Path) -> tuple[UserError, str]:
    error = _refusal(built_of, MlpSettings(), *_with_number(), encoders={"nope": "cnn"})
    return error, "model=mlp model.encoders.nope=cnn"


def _too_small_for_its_encoder(folder: Path) -> tuple[UserError, str]:
    given = {"images": CnnSettings(filters=[4, 4, 4, 4, 4])}
    error = _refusal(built_of, MlpSettings(), *_with_number(), encoders=given)
    target = "{_target_: stages.networks.cnn.cnn, filters: [4, 4, 4, 4, 4]}"
    return error, f"model=mlp 'model.encoders.images={target}'"


def own_columns(input_shape: dict[str, tuple[int, ...]], outputs: int) -> keras.Model:
    inputs = {name: keras.Input(shape, name=name) for name, shape in input_shape.items()}
    joined = keras.layers.Concatenate()([keras.layers.Flatten()(value) for value in inputs.values()])

    class Own(keras.Model):
        """A network that is more than a graph of layers."""

    return Own(inputs, keras.layers.Dense(outputs)(joined))


def _encoders_of_no_graph(folder: Path) -> tuple[UserError, str]:
    network = {"_target_": f"{__name__}.own_columns"}
    error = _refusal(built_of, network, *_with_number(), encoders={"images": "cnn"})
    return error, "model=mlp model.encoders.images=cnn"


def _no_backbone(folder: Path) -> tuple[UserError, str]:
    return _refusal(freeze, _dense()), "model=mlp model.frozen=true"


def _adapted(folder: Path) -> tuple[UserError, str]:
    given = ModelSettings(network=ApplicationSettings(name="EfficientNetB0"), weights="imagenet")
    words = "model=application model.network.name=EfficientNetB0 model.weights=imagenet"
    return _refusal(load_weights, _normalized(), given), words


def _no_weights_here(folder: Path) -> tuple[UserError, str]:
    """Refuse a network that cannot be built. A network that cannot be downloaded is the same case."""
    network = _dense(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)], name="backbone"))
    given = ModelSettings(network=ApplicationSettings(arguments={"nope": 1}), weights="imagenet")
    return _refusal(load_weights, network, given), "model=application model.weights=imagenet"


def _other_weights(folder: Path) -> tuple[UserError, str]:
    given = ModelSettings(weights=str(folder / "none.weights.h5"))
    return _refusal(load_weights, _dense(), given), f"model=mlp model.weights={folder}/none.weights.h5"


def _no_such_layer(folder: Path) -> tuple[UserError, str]:
    error = _refusal(place, _dense(), ["/cpu:0"], {"nope": "/cpu:0"})
    return error, "strategy=model_parallel '+strategy.layers={nope: /cpu:0}'"


def _no_graph(folder: Path) -> tuple[UserError, str]:
    class Own(keras.Model):
        pass

    return _refusal(place, Own(), ["/cpu:0"], {}), "strategy=model_parallel"


def _no_such_policy(folder: Path) -> tuple[UserError, str]:
    patterns = {"nope": "float32"}
    return _refusal(set_layer_policies, _dense(), patterns), "'+precision.layers={nope: float32}'"


def _compiled_in_parts(folder: Path) -> tuple[UserError, str]:
    where = model_parallel()
    model = small_cnn(real_digits(64), where)
    return _refusal(choose_jit, settings(jit="on"), where, model), "strategy=model_parallel train.jit=on"


def _not_memorized(folder: Path) -> tuple[UserError, str]:
    trained = Trained(None, ({"train/loss": 2.0}, {"train/loss": 1.5}), 2, 20)  # type: ignore[arg-type]
    return _refusal(overfit, trained, OverfitSettings(loss=0.05, steps_per_epoch=10)), "debug=overfit"


def _not_in_applications(folder: Path) -> tuple[UserError, str]:
    network = ApplicationSettings(name="ResNet51")
    error = _refusal(built_of, network, real_digits(64), one_device())
    return error, "model=application model.network.name=ResNet51"


def _too_small_images(folder: Path) -> tuple[UserError, str]:
    network = CnnSettings(filters=[4, 4, 4, 4, 4])
    error = _refusal(built_of, network, real_digits(64), one_device())
    return error, "model=cnn 'model.network.filters=[4,4,4,4,4]'"


def _a_map_of_numbers(folder: Path) -> tuple[UserError, str]:
    return _refusal(built_of, UnetSettings(), real_digits(64), one_device()), "model=unet"


def _network(name: str, where: Strategy, data: Dataset, **given: Any) -> Model:
    """Return a model of a network in this module."""
    return built_of({"_target_": f"{__name__}.{name}"}, data, where, **given)


class OwnLoss(keras.Sequential):
    """A network with a loss of its own."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


def own_loss(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(synchronized=True)]
    return OwnLoss([keras.Input(image_shape), *layers, keras.layers.Dense(num_classes)])


def spectral(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    last = keras.layers.SpectralNormalization(keras.layers.Dense(num_classes))
    return keras.Sequential([keras.Input(image_shape), keras.layers.Flatten(), last])


def by_lambda(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Return a network with a function that neither Keras nor LiteRT supports."""
    determinants = keras.layers.Lambda(lambda images: tf.linalg.det(images[..., 0])[:, None])
    return keras.Sequential([keras.Input(image_shape), determinants, keras.layers.Dense(num_classes)])


def _weights_and_own_loss(folder: Path) -> tuple[UserError, str]:
    data = real_digits(64)
    weighted = replace(data, train=replace(data.train, weights=np.ones(64, np.float32)))
    return _refusal(_network, "own_loss", one_device(), weighted), "augment.mixup=0.2"


def _statistics_and_own_loss(folder: Path) -> tuple[UserError, str]:
    where, data = mirrored(), real_digits(64)
    return _refusal(start, where, _network("own_loss", where, data), data, settings()), "strategy=mirrored"


def _assigned(folder: Path) -> tuple[UserError, str]:
    where, data = one_device(), real_digits(64)
    model = _network("spectral", where, data)
    error = _refusal(start, where, model, data, settings())
    return error, f"model=auto model.network._target_={__name__}.spectral"


def _clipped_before_the_sum(folder: Path) -> tuple[UserError, str]:
    where, data = mirrored(), real_digits(64)
    model = _network("own_step", where, data)
    optimizer = keras.optimizers.SGD(clipnorm=1.0)
    error = _refusal(KerasFit, setup_of(where, model, data, optimizer, settings()))
    return error, "strategy=mirrored train=fit"


def _unequal_shares(folder: Path) -> tuple[UserError, str]:
    where, data = mirrored(), real_digits(64)
    model = _network("own_step", where, data)
    error = _refusal(KerasFit.check, model, data, where, settings(batch_size=63))
    return error, "strategy=mirrored train=fit train.batch_size=63"


def _read_at_each_use(folder: Path) -> tuple[UserError, str]:
    where, data = one_device(), streamed(real_digits(64))
    model = _network("own_loss", where, data)
    return _refusal(ParameterServer.check, model, data, where, settings()), "strategy=parameter_server"


def _other_data(folder: Path) -> tuple[UserError, str]:
    data, where = real_digits(64), one_device()
    model = _network("own_step", where, data)
    save_trained(Trained(model, (), 1, 0), folder, data)
    other = replace(data, task=classification(tuple("abcdefghij")))
    return _refusal(restore_trained, folder, model, other, where), "from=evaluate run=0123abcd"


def _other_network(folder: Path) -> tuple[UserError, str]:
    data, where = real_digits(64), one_device()
    save_trained(Trained(_network("own_step", where, data), (), 1, 0), folder, data)
    error = _refusal(restore_trained, folder, _network("own_loss", where, data), data, where)
    return error, "from=evaluate run=0123abcd"


def _other_training(folder: Path) -> tuple[UserError, str]:
    data, where = real_digits(64), one_device()
    model = _network("own_step", where, data)
    optimizer = keras.optimizers.SGD()
    engine = engine_of(where, model, data, optimizer, settings())
    state = Resumable(engine.state, [], data, settings(), optimizer)
    other = state.checkpoint(Progress()).with_facts(order={"seed": 2, "batch_size": 64})
    return _refusal(state.restore, other), "seed=1"


def _other_metric(folder: Path) -> tuple[UserError, str]:
    made.write(folder, LABELS, made.probabilities(LABELS, 3))
    split = Split.of_images(np.zeros((4, 1, 1, 1), np.uint8), NUMBERS)
    error = _refusal(check_comparable, str(folder), split, NumberTargets.of(("x",), NUMBERS).task())
    return error, f"evaluate.against={folder}"


def _no_predictions(folder: Path) -> tuple[UserError, str]:
    return _refusal(check_other, folder, str(folder)), f"evaluate.against={folder}"


def _importance_of_images(folder: Path) -> tuple[UserError, str]:
    data = real_digits(64)
    return _refusal(check_settings, data.task, data, EvaluateSettings(importance=True)), "evaluate.importance=true"


def _slices_of_images(folder: Path) -> tuple[UserError, str]:
    return _refusal(check_slices, real_digits(64), ["label"]), "'evaluate.slices=[label]'"


def _infinite(folder: Path) -> tuple[UserError, str]:
    split = real_digits(64).test
    values = np.full((len(split), 3), np.nan, np.float32)
    return _refusal(check_finite, values, split, CLASSES, "digits", "float16"), "precision=float16"


def _beyond_float16(folder: Path) -> tuple[UserError, str]:
    rows = pd.DataFrame({"size": np.arange(30) % 3 + 0.5, "price": np.linspace(0, 1, 30)})
    rows["split"] = ["train"] * 20 + ["val"] * 5 + ["test"] * 5
    rows.loc[22, "size"] = 1e9
    data = normalize(table_of(folder, rows, target="price", split_column="split"), NormalizeSettings())
    given = (
        f"data=table data.files={folder}/table.csv data.target=price data.split_column=split precision=mixed_float16"
    )
    return _refusal(check_inputs, data.val, "table.csv", "mixed_float16"), given


def _other_shape(folder: Path) -> tuple[UserError, str]:
    data, path = real_digits(64), folder / "model.tflite"
    answers = {"rows": np.zeros((4, 2)), "milliseconds": np.array(1.0)}
    error = _refusal(_compared, data.task, np.zeros((4, 11)), "litert", path, 0.1, answers)
    return error, "export=litert"


def _too_different(folder: Path) -> tuple[UserError, str]:
    compared = Compared("litert_float32", folder / "model.tflite", 0.3, 1.0, 1, 1.0)
    return _refusal(compared.refuse, LiteRT(), "float32"), "export=litert"


def _not_reloaded(folder: Path) -> tuple[UserError, str]:
    (folder / "fails.py").write_text("raise SystemExit('no module')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh_process, "_prestarted", None)
        patch.setattr(fresh_process, "_SCRIPT", folder / "fails.py")
        orders = [{"path": "model.tflite", "answers": str(folder / "answers.npz")}]
        return _refusal(fresh_process.reload_files, orders, 60), "export=litert"


def _unknown_to_keras(folder: Path) -> tuple[UserError, str]:
    data = real_digits(64)
    model = _network("by_lambda", one_device(), data)
    return _refusal(KerasFile().converted, model, data), "export=keras"


def _unknown_to_litert(folder: Path) -> tuple[UserError, str]:
    data = real_digits(64)
    model = _network("by_lambda", one_device(), data)
    return _refusal(LiteRT().converted, model, data), "export=litert"


def _beyond_litert(folder: Path) -> tuple[UserError, str]:
    data = real_digits(64)
    model = replace(_network("own_step", one_device(), data), task=regression(("x",), (7e4,), (1.0,)))
    return _refusal(LiteRT(weights="float16").check, model, data), "export=litert"


def _nbeats_of_classes(folder: Path) -> tuple[UserError, str]:
    return _refusal(nbeats, (5, 2), 3, [8], 1, 0.0, SeriesFacts(5, 0, 0)), "model=nbeats"


CASES: dict[str, Case] = {
    "stages/networks/series.py:nbeats": _nbeats_of_classes,
    "stages/callbacks.py:_refuse_useless": _two_rates,
    "stages/callbacks.py:build_callbacks": _unknown_metric,
    "stages/checkpoints/saved.py:_check_data": _other_data,
    "stages/checkpoints/saved.py:restore_trained": _other_network,
    "stages/checkpoints/compatibility.py:check_fits": _other_training,
    "stages/debug.py:overfit": _not_memorized,
    "stages/evaluation/against.py:check_comparable": _other_metric,
    "stages/evaluation/by_column.py:check_settings": _importance_of_images,
    "stages/evaluation/by_column.py:check_slices": _slices_of_images,
    "stages/evaluation/predictions.py:check_finite": _infinite,
    "stages/evaluation/predictions.py:check_inputs": _beyond_float16,
    "stages/evaluation/predictions.py:check_other": _no_predictions,
    "stages/exporters/comparison.py:_compared": _other_shape,
    "stages/exporters/comparison.py:refuse": _too_different,
    "stages/exporters/fresh_process.py:reload_files": _not_reloaded,
    "stages/exporters/keras_file.py:converted": _unknown_to_keras,
    "stages/exporters/litert.py:check": _beyond_litert,
    "stages/exporters/litert.py:converted": _unknown_to_litert,
    "stages/model.py:_build": _too_small_images,
    "stages/model.py:_built": _too_small_for_its_encoder,
    "stages/networks/encoders.py:encoders_of": _no_such_feature,
    "stages/networks/encoders.py:join_encoders": _encoders_of_no_graph,
    "stages/model.py:_refuse_other_shape": _a_map_of_numbers,
    "stages/model.py:_refuse_own_loss": _weights_and_own_loss,
    "stages/networks/applications.py:_find": _not_in_applications,
    "stages/networks/model_parallel.py:assign": _no_such_layer,
    "stages/networks/model_parallel.py:place": _no_graph,
    "stages/networks/precision.py:set_layer_policies": _no_such_policy,
    "stages/optimization/gradients.py:__init__": _statistics_and_own_loss,
    "stages/optimization/gradients.py:_compute": _assigned,
    "stages/optimization/xla.py:choose_jit": _compiled_in_parts,
    "stages/optimization/optimizers.py:build_optimizer": _clipped_twice,
    "stages/optimization/optimizers.py:decay_excluded": _no_such_weight,
    "stages/strategy.py:_find": _no_such_device,
    "stages/tasks/chosen.py:chosen_task": _other_task,
    "stages/tasks/chosen.py:tried": _no_sum,
    "stages/tasks/classification.py:check": _not_probabilities,
    "stages/tasks/classification.py:check_probabilities": _not_logits,
    "stages/tasks/classification.py:for_training": _few_class_weights,
    "stages/tasks/chosen.py:with_head": _loss_of_logits,
    "stages/tasks/parts.py:_refuse_settings_of_classes": _smoothed_numbers,
    "stages/tasks/chosen.py:for_training": _smoothed_own_loss,
    "stages/training/keras_fit.py:__init__": _clipped_before_the_sum,
    "stages/training/keras_fit.py:check": _unequal_shares,
    "stages/training/outcome.py:diverged": _diverged,
    "stages/training/outcome.py:report_completed": _no_epoch_left,
    "stages/training/outcome.py:too_large": _too_large,
    "stages/training/parameter_server.py:check": _read_at_each_use,
    "stages/training/phases.py:plan_phases": _nothing_frozen,
    "stages/training/phases.py:starting_phase": _fine_tunes,
    "stages/training/own_steps.py:check": _own_step,
    "stages/transfer/pretrained.py:_from_applications": _no_weights_here,
    "stages/transfer/pretrained.py:_refuse_adapted": _adapted,
    "stages/transfer/pretrained.py:_refused": _other_weights,
    "stages/transfer/pretrained.py:freeze": _no_backbone,
}

REPEATED = "repeats the command"
OWN = "code for the reader's own function"

UNREACHED: dict[str, str] = {
    "stages/checkpoints/files.py:wait": REPEATED,
    "stages/collectives.py:others_needed": REPEATED,
    "stages/exporters/onnx_file.py:converted": "needs the extra onnx",
    "stages/model.py:_check_outputs": OWN,
    "stages/model.py:_refuse_untracked": OWN,
    "stages/model.py:_scaled": OWN,
    "stages/model.py:model": OWN,
    "stages/networks/keras_hub.py:keras_hub": "needs the extra hub",
    "stages/networks/keras_hub.py:pooled": "needs the extra hub",
    "stages/strategy.py:make_logical_cpus": REPEATED,
    "stages/tasks/chosen.py:_own_task": OWN,
    "stages/tasks/chosen.py:own_loss": OWN,
    "stages/tasks/chosen.py:own_metric": OWN,
    "stages/training/trainer.py:_take_steps": "needs a network that XLA cannot compile, and seconds to try it",
}
"""Places whose advice cannot be typed, or which a small test cannot reach, with the reason."""
