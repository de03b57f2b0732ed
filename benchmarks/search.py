"""A search with pruning against random search with the same number of epochs, over several seeds, on digits.

    python -m benchmarks.search [--seeds 5] [--trials 20]

For each seed: `sweep=tpe` with the median pruner; then `sweep=random` without pruning, with as many trials as the
epochs of the first allow, rounded up. Prints the best validation accuracy of each, and the share of epochs that
pruning has left out.
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import optuna

from benchmarks.processes import pipeline
from pipeline.search.study import STUDY, open_storage

EPOCHS = 8
SPACE = (
    "optimizer.learning_rate=tag(log,interval(1e-5,1e-1))", "model.network.dropout=interval(0,0.7)",
    "train.label_smoothing=interval(0,0.3)", "train.batch_size=16,32,64,128",
)  # fmt: skip
FIXED = (
    "data=digits", "model=cnn", f"train.epochs={EPOCHS}", "pipeline.evaluate=null", "pipeline.export=null",
    "pipeline.inspect=null", "sweep.metric=val/best_accuracy",
)  # fmt: skip


def search(outputs: Path, *words: str) -> tuple[float, int, int]:
    """Run a search; return its best value, its epochs, and the epochs without pruning."""
    pipeline(outputs, *words, *FIXED, *SPACE, "tracking=off")
    [file] = outputs.glob(f"sweeps/*/{STUDY}")
    study = optuna.load_study(study_name="search", storage=open_storage(file))
    trials = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    epochs = sum(EPOCHS if trial.state.name == "COMPLETE" else trial.last_step or 0 for trial in trials)
    return study.best_value, epochs, EPOCHS * len(trials)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    print("| seed | epochs | left out | best by TPE, pruned | best at random, as many epochs |\n|---|---|---|---|---|")
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            given = ("sweep=tpe", f"sweep.trials={options.trials}", f"sweep.seed={seed}")
            best, epochs, full = search(Path(first), *given)
            trials = math.ceil(epochs / EPOCHS)
            random = ("sweep=random", f"sweep.trials={trials}", f"sweep.seed={seed + 100}", "sweep.pruner=none")
            by_chance, _, _ = search(Path(second), *random)
        rows.append((1 - epochs / full, best, by_chance))
        print(f"| {seed} | {epochs} of {full} | {1 - epochs / full:.0%} | {best:.4f} | {by_chance:.4f} |", flush=True)
    shares, bests, randoms = zip(*rows, strict=True)
    medians = f"{statistics.median(shares):.0%} | {statistics.median(bests):.4f} | {statistics.median(randoms):.4f}"
    print(f"| median | | {medians} |")


if __name__ == "__main__":
    main()
