"""The rows of docs/how-it-works/performance.md: each measurement, its baseline and its target."""

from dataclasses import dataclass

from benchmarks.measuring import Samples, ratios


@dataclass(frozen=True)
class Row:
    """A ratio of costs, or a cost by itself.

    measurement: `module:function` below `benchmarks`. figure, ours, against: which of its samples; without `against`
    the figure itself is the value. at_least: the target of a speed, which is the other's cost over ours. at_most: that
    of a cost, which is ours over the other's. note: what holds it, where the target is not met.
    """

    name: str
    measurement: str
    figure: str
    ours: str
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"
    note: str = ""

    @property
    def key(self) -> str:
        """Name the row in files."""
        return self.name if self.against is None else f"{self.name} / {self.against}"

    @property
    def target(self) -> float | None:
        return self.at_most if self.at_least is None else self.at_least

    def values(self, samples: Samples) -> list[float]:
        """Return the value of each round; raise KeyError where the samples do not have it."""
        ours = samples[self.ours][self.figure]
        if self.against is None:
            return ours
        theirs = samples[self.against][self.figure]
        return ratios(theirs, ours) if self.at_least is not None else ratios(ours, theirs)

    def is_met(self, value: float) -> bool:
        """Return whether `value` reaches the target."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most

    def has_regressed(self, value: float, recorded: float) -> bool:
        """Return whether `value` is worse than half of what was recorded: half the speed, or twice the cost."""
        return value < recorded / 2 if self.at_least is not None else value > 2 * recorded


@dataclass(frozen=True)
class Measurement:
    """rounds: of the whole benchmark; quick: of the quick one, 0: left out."""

    rounds: int
    quick: int = 0


MEASUREMENTS = {
    "training:convnet": Measurement(6, quick=2),
    "training:frozen_features": Measurement(5),
    "columns:tables": Measurement(9),
    "columns:texts": Measurement(5),
    "scripts:mnist": Measurement(1),
    "scripts:flowers": Measurement(1),
    "distribution:strategies": Measurement(2),
    "start:commands": Measurement(7, quick=3),
    "start:first_step": Measurement(3, quick=1),
    "preparation:mnist": Measurement(3),
    "preparation:cifar10": Measurement(3),
    "preparation:flowers": Measurement(3),
    "sweeps:launchers": Measurement(1),
    "overhead:tracking": Measurement(10),
    "overhead:system_metrics": Measurement(10),
    "overhead:checkpoints": Measurement(10, quick=3),
    "reuse:mnist": Measurement(1),
    "memory:default_run": Measurement(3, quick=1),
    "memory:larger_than_memory": Measurement(1),
    "memory:evaluation": Measurement(1),
    "growth:examples": Measurement(1),
    "growth:jobs": Measurement(1),
    "growth:comparison": Measurement(2),
}
"""All measurements, in the order in which they are made."""

COMPOSED = "Hydra composes all groups and the framework checks them, whereas the baseline only imports Hydra."
JOBS = (
    "every job inspects, tests, exports and reloads its export, which takes longer than its epoch; and a job takes no "
    "second step before the previous one has ended, so the speeds of combinations can be compared."
)
DRAWN = "a trial depends on the results of earlier trials, so it starts only when the previous one has ended."
AT_ONCE = "two jobs with one core each do the same work as two consecutive jobs, and share memory and caches."
COMPUTED = (
    "images with a short side of 160 pixels are decoded in less than a millisecond, so both spend nearly the whole "
    "epoch in the same network."
)
IN_MEMORY = (
    "with its images in memory the script computes all the time, too. Both run at the speed of the same convolutions, "
    "and this project's process also tests, exports and verifies."
)
NOISE = "the host's speed changes by a third from minute to minute, and 25 repetitions do not average that out."
SUMMED = "a step takes a millisecond and also selects its rows and sums each metric; the host is shared."
SOCKETS = "gradients are sent through sockets, and in each of the short steps both workers wait for the slower one."
ANTIALIASED = (
    "its resize takes four pixels for each new one and skips the others; two thirds of the decoder's time go to all."
)
PREPARED = "every image is also hashed, summarized and written to disk for later runs."

ROWS = (
    Row("training of the MNIST convnet, batch 128, with everything else that the pipeline does",
        "training:convnet", "training", "pipeline", "bare compute", at_least=0.95),
    Row("its validation after each epoch", "training:convnet", "validation", "pipeline", "bare compute", at_least=0.9,
        note="the predictions of each batch are also counted per class and summed exactly; bare compute does not."),
    Row("features of a frozen MobileNetV2, 160 px",
        "training:frozen_features", "a batch", "features", "bare compute", at_least=0.95),
    Row("an epoch of diamonds, `mlp`, batch 256", "columns:tables", "seconds", "pipeline", "bare compute",
        at_least=0.95, note=SUMMED),
    Row("an epoch of diamonds, `mlp`, batch 256", "columns:tables", "seconds", "pipeline", "Keras script",
        at_least=1.0),
    Row("an epoch of diamonds, `mlp`, batch 256", "columns:tables", "seconds", "pipeline", "Keras script, cached",
        at_least=1.0),
    Row("an epoch of docstrings, `text_cnn`, batch 64", "columns:texts", "seconds", "pipeline", "bare compute",
        at_least=0.95, note=SUMMED),
    Row("an epoch of docstrings, `text_cnn`, batch 64", "columns:texts", "seconds", "pipeline", "Keras script",
        at_least=1.0),
    Row("an epoch of docstrings, `text_cnn`, batch 64", "columns:texts", "seconds", "pipeline", "Keras script, cached",
        at_least=1.0),
    Row("MNIST in an epoch", "scripts:mnist", "later epochs", "pipeline", "Keras tutorial", at_least=1.3),
    Row("MNIST in an epoch", "scripts:mnist", "later epochs", "pipeline", "Keras tutorial, cached", at_least=1.15,
        note=IN_MEMORY),
    Row("MNIST in an epoch", "scripts:mnist", "later epochs", "pipeline", "PyTorch", at_least=1.3),
    Row("MNIST in an epoch", "scripts:mnist", "later epochs", "pipeline", "PyTorch, compiled", at_least=1.3),
    Row("3 epochs of MNIST, whole process", "scripts:mnist", "seconds", "pipeline", "Keras tutorial", at_most=0.8),
    Row("3 epochs of MNIST, whole process", "scripts:mnist", "seconds", "pipeline", "Keras tutorial, cached",
        at_most=0.8, note=IN_MEMORY),
    Row("3 epochs of MNIST, whole process", "scripts:mnist", "seconds", "pipeline", "PyTorch", at_most=0.8,
        note="its script neither tests nor exports what it has trained."),
    Row("the same, images not yet prepared", "scripts:mnist", "seconds", "pipeline, unprepared", "Keras tutorial",
        at_most=1.0),
    Row("the same, images not yet prepared", "scripts:mnist", "seconds", "pipeline, unprepared",
        "Keras tutorial, cached", at_most=1.0, note=PREPARED),
    Row("tf_flowers at 96 px, first epoch", "scripts:flowers", "first epoch", "pipeline", "Keras tutorial",
        at_least=3.0, note=COMPUTED),
    Row("tf_flowers at 96 px, later epochs", "scripts:flowers", "later epochs", "pipeline", "Keras tutorial",
        at_least=3.0, note=COMPUTED),
    Row("a step by two replicas", "distribution:strategies", "a step", "mirrored", "one_device", at_least=0.9,
        note="each replica runs all operations of the step on half of the batch, and the gradients are added."),
    Row("a step by two workers", "distribution:strategies", "a step", "multi_worker", "one_device", at_least=0.85,
        note=SOCKETS),
    Row("a step by two workers of one core each", "distribution:strategies", "a step", "multi_worker",
        "one core, half the batch", at_least=0.85, note=SOCKETS),
    Row("from the command to the first step", "start:first_step", "seconds", "pipeline", "TensorFlow's import, a step",
        at_most=1.3, note="the import of MLflow and its store, then the inspection of the data and the tracing."),
    Row("`--help`", "start:commands", "seconds", "--help", "import hydra", at_most=1.5),
    Row("a wrong key", "start:commands", "seconds", "a wrong key", "import hydra", at_most=1.5,
        note=COMPOSED),
    Row("`dry_run=true`", "start:commands", "seconds", "dry_run=true", "import hydra", at_most=1.5, note=COMPOSED),
    Row("preparation of MNIST", "preparation:mnist", "seconds", "pipeline", "tf.data", at_most=1.0, note=PREPARED),
    Row("preparation of a set like CIFAR-10", "preparation:cifar10", "seconds", "pipeline", "tf.data", at_most=1.0,
        note=PREPARED),
    Row("preparation of tf_flowers", "preparation:flowers", "seconds", "pipeline", "tf.data", at_most=1.0,
        note=ANTIALIASED),
    Row("preparation of tf_flowers", "preparation:flowers", "seconds", "pipeline", "tf.data, antialiased", at_most=1.0,
        note=PREPARED),
    Row("a job of a sweep beyond its training", "sweeps:launchers", "over training", "sweep", at_most=1.5, unit="s",
        note="the tracing of training and evaluation, and the export with its comparison."),
    Row("eight jobs of one epoch on the digits, a sweep", "sweeps:launchers", "seconds", "sweep", "a process each",
        at_least=3.0, note=JOBS),
    Row("the same, two at a time", "sweeps:launchers", "seconds", "sweep, two at a time", "a process each",
        at_least=4.0, note=AT_ONCE),
    Row("the same sweep", "sweeps:launchers", "seconds", "sweep", "Hydra's basic launcher", at_least=3.0, note=JOBS),
    Row("the same, two at a time", "sweeps:launchers", "seconds", "sweep, two at a time",
        "Hydra's joblib launcher, two at a time", at_least=3.0, note=AT_ONCE),
    Row("a search of 20 trials, a run", "sweeps:launchers", "a run", "search, 1 at a time", "a process each",
        at_least=6.0, note=DRAWN),
    Row("the same, two at a time, a run", "sweeps:launchers", "a run", "search, 2 at a time", "a process each",
        at_least=6.0, note=AT_ONCE),
    Row("tracking in SQLite, an epoch of 50 steps", "overhead:tracking", "a record in 50 steps", "SQLite",
        at_most=1.01, note=NOISE),
    Row("tracking on a server, an epoch of 50 steps", "overhead:tracking", "a record in 50 steps", "a server",
        at_most=1.01, note=NOISE),
    Row("system metrics at the default interval", "overhead:system_metrics", "at the default interval", "with",
        at_most=1.01),
    Row("checkpoints at the default interval", "overhead:checkpoints", "at the default interval", "with",
        at_most=1.02),
    Row("evaluating and exporting a run again, `from=evaluate`", "reuse:mnist", "seconds", "from=evaluate", "train"),
    Row("memory of the default run", "memory:default_run", "MiB", "default run", "TensorFlow, idle", at_most=1.5),
    Row("memory of tf_flowers from disk", "memory:larger_than_memory", "MiB", "all, from disk", "an eighth, from disk",
        at_most=1.1, note="it includes memory-mapped pages of the image file, which the kernel reclaims when needed."),
    Row("memory of evaluation at 288 px", "memory:evaluation", "MiB", "evaluate", "train", at_most=1.1),
    Row("1,000 to 1,000,000 examples", "growth:examples", "exponent", "growth", at_most=1.05, unit="exponent"),
    Row("1 to 64 jobs", "growth:jobs", "exponent", "growth", at_most=1.05, unit="exponent"),
    Row("comparison of 10 to 1,000 runs", "growth:comparison", "exponent", "growth", at_most=1.05, unit="exponent"),
    Row("comparison of 1,000 runs", "growth:comparison", "seconds", "1,000", at_most=5.0, unit="s",
        note="half of it is Matplotlib: its import, and 200 rows and 4,000 curves on a page and in two images."),
)  # fmt: skip
