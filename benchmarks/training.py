"""Training and validation against bare compute, side by side in one run of the whole pipeline."""

import json
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Figures, Samples, interleave
from benchmarks.processes import pipeline

BATCH, STEPS, SCORED, BATCHES = 128, 96, 256, 23
"""Batch of training and its steps an epoch; batch of validation and its batches, together a tenth of MNIST."""


def convnet(rounds: int) -> Samples:
    """Measure epochs of the MNIST convnet, with tracking, metrics, checkpoints and progress; a round is an epoch."""
    examples, validated = BATCH * STEPS, SCORED * BATCHES
    data = (
        "data=synthetic", "data.height=28", "data.width=28", "data.channels=1", f"data.examples={examples + validated}",
        f"data.val_fraction={validated / (examples + validated)}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        arguments = f"path:{times},batch:{BATCH},steps:{STEPS},scored:{SCORED},batches:{BATCHES}"
        callback = f"train.callbacks=[{{_target_:benchmarks.callbacks.BesideBare,{arguments}}}]"
        train = (f"train.batch_size={BATCH}", f"train.epochs={rounds + 1}", callback)
        pipeline(Path(folder), *data, *train, "pipeline.evaluate=null", "pipeline.export=null")
        seconds = json.loads(times.read_text())
    later = {name: values[1:] for name, values in seconds.items()}  # the first epoch traces
    return {
        "pipeline": {"training": later["training"], "validation": later["validation"]},
        "bare compute": {"training": later["bare training"], "validation": later["bare validation"]},
    }


def frozen_features(rounds: int) -> Samples:
    """Measure the features of a frozen MobileNetV2 of width 0.35 against its bare inference, images of 160 pixels."""
    from benchmarks.bare import Bare
    from benchmarks.models import built, device, images, trained_by_adam
    from stages.reporter import Reporter
    from stages.settings.model import ApplicationSettings
    from stages.transfer.feature_cache import BATCH, on_features

    class Watched(Reporter):
        """Notes when each batch of features is there."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def progress(self, *_: object) -> None:
            self.times.append(time.perf_counter())

    dataset = images(BATCH * 12, 160, classes=5)
    where = device()
    network = ApplicationSettings(name="MobileNetV2", arguments={"alpha": 0.35})
    model = built(dataset, where, network, frozen=True)
    settings = trained_by_adam(64, epochs=1)
    bare = Bare(model.network, 1, BATCH)

    def features() -> Figures:
        watched = Watched()
        on_features(model, dataset, where, settings, watched, None)
        return {"a batch": (watched.times[10] - watched.times[1]) / 9}  # the first one traces, the last are not whole

    def inference() -> Figures:
        began = time.perf_counter()
        bare.infer(9)
        return {"a batch": (time.perf_counter() - began) / 9}

    return interleave({"features": features, "bare compute": inference}, rounds, warm_up=1)
