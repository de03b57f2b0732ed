"""`python -m tests.stored_runs.make`: make the stored runs and what their uses must give, see README.md.

Every run, fork and evaluation is a process of its own, by the command that a user would type.
"""

import argparse
import contextlib
import csv
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from pipeline.commands import predict
from pipeline.system.signals import until
from stages.checkpoints.names import checkpoint_files, step_of

STORED = Path(__file__).resolve().parent
"""Folder of the archives."""

KILLED = "image"
"""The run that is killed. In float32, the weights at its end are the same on all processors, up to rounding; in half
precision, differences would grow too much to notice a mistake."""

HALF = "mirrored"
"""The run in half precision."""

EPOCHS = 3
"""Epochs of each run."""

STEPS_PER_EPOCH = 27
"""Steps of an epoch of the run that is killed."""

_ALWAYS = ("tracking=off", "deterministic=true", "pipeline.inspect=null", "optimizer.learning_rate=0.01")
_TABLE = ("data=table", "train.batch_size=16")

WORDS = {
    KILLED: (
        "data=image_folder", "data.dir=photos", "data.size=10", "data.val_fraction=0.2", "model=cnn",
        "model.network.filters=[4,8]", "augment=flip_shift", "schedule=cosine", "optimizer.ema_momentum=0.9",
        "train.batch_size=4", "train.steps_per_call=1", "train.checkpoint_every_steps=2",
    ),
    "table": (*_TABLE, "data.files=flats.csv", "data.target=price", "model=mlp", "model.network.hidden=[16]"),
    "text": (
        *_TABLE, "data.files=reviews.csv", "data.target=liked", "+data.features.review=text", "model=text_cnn",
        "model.network.filters=8", "model.network.widths=[2,3]",
    ),
    HALF: (
        "data=digits", "model=cnn_photo", "model.network.filters=[4,8]", "model.network.convolutions=1",
        "strategy=mirrored", "strategy.cpu_replicas=2", "precision=mixed_float16", "optimizer=adamw",
        "optimizer.weight_decay=0.01", "train.batch_size=32",
    ),
}  # fmt: skip
"""From the name of each stored run to the settings that it was made with."""

NEW = {KILLED: "new_photos", "table": "new_flats.csv", "text": "new_reviews.csv", HALF: "new_digits"}
"""What each exported model predicts."""


class Use(NamedTuple):
    """What the uses of a stored run must give."""

    test: dict[str, float]
    """Test metrics of the run, and of an evaluation of it."""
    fork: dict[str, float]
    """Metrics of the epoch that a fork trains."""
    answers: list[dict[str, Any]]
    """Predictions for `NEW`."""


def write_data(root: Path) -> None:
    """Write the data of the runs into `root`, and new examples for their exported models."""
    random = np.random.default_rng(7)
    for number in range(150):
        _write_photo(root / "photos" / ("red", "green", "blue")[number % 3] / f"{number:02}.png", number % 3, random)
    for number in range(3):
        _write_photo(root / NEW[KILLED] / f"{number}.png", number, random)
    for number in range(3):
        _write_image(root / NEW[HALF] / f"{number}.png", load_digits().images[number] * 15)
    flats, reviews = [*_flats(np.random.default_rng(8), 243)], [*_reviews(np.random.default_rng(9), 243)]
    for name, header, rows in (("flats", ["area", "rooms", "place", "price"], flats),
                               ("reviews", ["review", "liked"], reviews)):  # fmt: skip
        _write_table(root / f"{name}.csv", [header, *rows[:-3]])
        _write_table(root / f"new_{name}.csv", [line[:-1] for line in [header, *rows[-3:]]])


def _write_photo(path: Path, channel: int, random: np.random.Generator) -> None:
    pixels = random.integers(0, 160, (10, 10, 3))
    pixels[..., channel] += 60
    _write_image(path, pixels)


def _write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    os.utime(path, (0, 0))  # the fingerprint of the data contains the time, which the archive keeps in whole seconds


def _flats(random: np.random.Generator, count: int) -> Iterator[list[str]]:
    surcharge = {"north": 10, "south": 40, "east": 0, "west": 20, "centre": 80}
    for number in range(count):
        place, rooms = str(random.choice([*surcharge])), int(random.integers(1, 7))
        area = 20 * rooms + 8 * random.normal()
        price = 2 * area + surcharge[place] + 5 * random.normal()
        yield [f"{area:.1f}" if number % 17 else "", str(rooms), place, f"{price:.1f}"]


def _reviews(random: np.random.Generator, count: int) -> Iterator[list[str]]:
    kinds = {"yes": ["good", "great", "lovely", "happy"], "no": ["bad", "awful", "poor", "dull"]}
    for number in range(count):
        liked = ("yes", "no")[number % 2]
        words = [*random.choice(["the", "film", "was", "story", "actor", "long"], 6), *random.choice(kinds[liked], 2)]
        yield [" ".join(random.permutation(words)), liked]


def _write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    os.utime(path, (0, 0))


def words_of(name: str) -> tuple[str, ...]:
    """Return the overrides of the stored run `name`."""
    return (*WORDS[name], *_ALWAYS, f"train.epochs={EPOCHS}", f"name={name}")


def fork_words(run: Path, name: str) -> tuple[str, ...]:
    """Return the overrides of a fork that trains one epoch more than `run`, from its last weights."""
    words = (f"train.epochs={EPOCHS + 1}", "pipeline.evaluate=null", "pipeline.export=null")
    return (f"fork={run.name}", "fork_weights=last", f"name={name}_fork", *words)


def predictions(run: Path, examples: Path) -> list[dict[str, Any]]:
    """Return what the exported model of a run predicts for a table, or for the images in a folder.

    The only place that knows how predictions are asked for.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert predict.main([str(run), str(examples), "--json"]) == 0
    rows = [json.loads(line) for line in printed.getvalue().splitlines()]
    return [{**row, "file": Path(row["file"]).name} for row in rows]


def run_folder(root: Path, name: str) -> Path:
    """Return the folder of the only run `name` in `root`."""
    [folder] = (root / "outputs" / "runs" / name).glob("*/")
    return folder


def last_epoch(run: Path) -> dict[str, float]:
    """Return the training and validation metrics of the last epoch, without speeds."""
    summary = json.loads((run / "summary.json").read_text())
    of_task = ("loss", *summary["facts"]["task"]["metrics"])
    names = ["train/loss_scale", *(f"{split}/{metric}" for split in ("train", "val") for metric in of_task)]
    return {name: summary["metrics"][name] for name in names if name in summary["metrics"]}


def test_metrics(run: Path) -> dict[str, float]:
    """Return the test metrics of a run."""
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    return {name: value for name, value in metrics.items() if name.startswith("test/")}


def weights_of(run: Path) -> dict[str, np.ndarray]:
    """Return the trained weights that a run has saved, by their names in the file."""
    with np.load(run / "results" / "train" / "trained.npz") as arrays:
        return {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind == "f"}


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *words]


def _run(root: Path, *words: str) -> None:
    print("python -m pipeline", *words, flush=True)
    environment = {**os.environ, "PYTHONPATH": str(STORED.parents[1])}
    subprocess.run(_command(*words), cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)


def _run_killed(root: Path) -> None:
    """Start the run `KILLED` and end it by SIGKILL in the middle of its second epoch."""
    environment = {**os.environ, "PYTHONPATH": str(STORED.parents[1])}
    folder = root / "outputs" / "runs" / KILLED
    wanted = STEPS_PER_EPOCH + STEPS_PER_EPOCH // 3
    with subprocess.Popen(_command(*words_of(KILLED)), cwd=root, env=environment) as process:
        steps = lambda: [step_of(path) for run in folder.glob("*/") for path in checkpoint_files(run / "checkpoints")]  # noqa: E731
        assert until(lambda: max(steps(), default=0) >= wanted, 300, 0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert wanted <= max(steps()) < 2 * STEPS_PER_EPOCH, "killed too late: run this again"


def main() -> None:
    """Make the runs in a temporary folder and store them."""
    parser = argparse.ArgumentParser("python -m tests.stored_runs.make", description="Make the stored runs again.")
    parser.add_argument("names", nargs="*", choices=[*WORDS, []], metavar="NAME", help="runs to make (default: all)")
    names = parser.parse_args().names or WORDS
    with tempfile.TemporaryDirectory(prefix="stored-runs-") as scratch:
        for name in names:
            _store(name, Path(scratch) / name)


def _store(name: str, root: Path) -> None:
    root.mkdir()
    write_data(root)
    _run(root, *words_of(name))
    whole = run_folder(root, name)
    _run(root, *fork_words(whole, name))
    use = Use(test_metrics(whole), last_epoch(run_folder(root, f"{name}_fork")), predictions(whole, root / NEW[name]))
    (STORED / f"{name}.json").write_text(json.dumps(use._asdict(), indent=1) + "\n")
    if name == KILLED:
        assert step_of(checkpoint_files(whole / "checkpoints")[-1]) == EPOCHS * STEPS_PER_EPOCH
        np.savez_compressed(STORED / f"{name}_weights.npz", allow_pickle=False, **weights_of(whole))
        shutil.rmtree(root / "outputs")
        _run_killed(root)
    _pack(run_folder(root, name), root, STORED / f"{name}.tar.xz")


def _pack(run: Path, root: Path, archive: Path) -> None:
    """Write a run, its data and the new examples to `archive`, without pictures."""
    data = {KILLED: ["photos"], "table": ["flats.csv"], "text": ["reviews.csv"]}.get(run.parent.name, [])
    paths = [root / part for part in (*data, NEW[run.parent.name])] + [run]

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        return None if member.name.endswith(".png") and "/runs/" in member.name else member

    with lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in paths:
            tar.add(path, path.relative_to(root).as_posix(), filter=kept)
    print(f"{archive.name}: {archive.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
