"""Images that weights were trained on, seen again among those of a test."""

from pathlib import Path

import numpy as np

from stages.results import Split

TRAINED = Path("results", "train", "trained.npz")
"""The result of a training, in its run's folder; `stages.checkpoints.saved` writes it."""

DIGESTS = "train_digests"


def count_known(trained_on: np.ndarray | None, test: Split) -> int:
    """Returns how many images of `test` are among those with these digests, as far as they are at hand."""
    if trained_on is None or not test.is_at_hand:
        return 0
    return int(np.isin(test.described.digests, trained_on).sum())


def digests_of_run(weights: Path) -> np.ndarray | None:
    """Returns the digests of the images that a run was trained on, by a file or folder in its folder.

    None where it is in no run's folder, or that run has not kept them.
    """
    for folder in list(weights.resolve().parents)[:3]:
        try:
            with np.load(folder / TRAINED, allow_pickle=False) as arrays:
                return np.asarray(arrays[DIGESTS]) if DIGESTS in arrays.files else None
        except (OSError, ValueError):
            continue
    return None


def too_good(weights: str, known: int, total: int) -> str:
    """Returns the warning that a test has images which `weights` were trained on."""
    return f"{weights} was trained on {known:,} of these {total:,} test images: its metrics are too good"
