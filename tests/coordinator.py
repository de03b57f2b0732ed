"""`python -m tests.coordinator FILE`: train as the chief of a parameter-server cluster, and write its counts."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.cases import engine_of
from stages.optimization.optimizers import build_optimizer
from stages.settings.strategy import ParameterServerSettings
from stages.settings.train import AdamSettings
from stages.strategy import strategy
from tests.stages.experiments import flat, real_digits, settings, small_cnn


def main() -> None:
    """Train three epochs of 900 examples in mixed_float16."""
    where = strategy(ParameterServerSettings(deterministic=False))
    dataset = real_digits(900)
    float32, float64 = (flat(small_cnn(dataset, where, policy).network) for policy in ("float32", "float64"))
    optimizer = AdamSettings(clip_norm=1.0, ema_momentum=0.9, accumulation=2)
    given = replace(settings(), optimizer=optimizer, steps_per_call=2)
    model = small_cnn(dataset, where, "mixed_float16")
    with where.distribution.scope():
        made = build_optimizer(optimizer, 0.002)
    loop, examples = engine_of(where, model, dataset, made, given), []
    for epoch in range(3):
        loop.reset()
        loop.run(epoch * 15, 15)
        examples.append(float(loop.step.sums.totals.read()["examples"]))
    devices = sorted({variable.value.device for variable in model.network.trainable_variables})
    differing = int((float32.astype("float64") != float64).sum())
    servers = [device.split("/")[3] for device in devices]
    Path(sys.argv[1]).write_text(json.dumps([differing, examples, int(loop.state.iterations.numpy()), servers]))


if __name__ == "__main__":
    main()
