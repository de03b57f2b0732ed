"""A split: targets that are read at each use, and values that are known to be computed from other columns."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from stages.data.columns import Streamed, describe
from stages.data.examples import SplitReader
from stages.data.split import Split
from stages.evaluation.test_set import digest_of
from tests.stages.experiments import after_steps, flat, one_device, real_digits, settings

RANDOM = np.random.default_rng(4)
IMAGES = RANDOM.integers(0, 256, (20, 6, 5, 3)).astype(np.uint8)
MASKS = RANDOM.integers(0, 4, (20, 6, 5)).astype(np.uint8)
READ: list[int] = []


def masks(rows: object) -> np.ndarray:
    """Return some masks, and note how many are read."""
    found: np.ndarray = MASKS[rows]  # type: ignore[call-overload]
    READ.append(len(found))
    return found


HELD = Split({"images": IMAGES}, MASKS)
STORED = Split({"images": IMAGES}, Streamed(masks, MASKS.shape, MASKS.dtype))


def test_targets_that_are_read_at_each_use_are_the_same_examples() -> None:
    rows = np.array([7, 3, 3, 19])
    READ.clear()
    part = STORED.take(np.arange(5, 20)).take(np.array([2, 0]))
    assert (len(STORED), len(part), READ) == (20, 2, [])
    [of_held, of_stored] = [SplitReader.of(split).read(tf.constant(rows))[1] for split in (HELD, STORED)]
    assert READ == [4]
    assert of_held.dtype == of_stored.dtype == tf.int32
    np.testing.assert_array_equal(of_stored, MASKS[rows])
    np.testing.assert_array_equal(of_held, MASKS[rows])
    np.testing.assert_array_equal(part.target_values, MASKS[[7, 5]])
    assert digest_of(STORED) == digest_of(HELD) != digest_of(replace(HELD, targets=MASKS + 1))
    assert (HELD.is_in_memory, STORED.is_in_memory) == (True, False)


@pytest.mark.parametrize("changes", [{"images": IMAGES + 1}, {"images": IMAGES.copy()}, {"others": IMAGES}], ids=str)
def test_digests_of_a_cache_are_of_the_features_they_were_computed_from(changes: dict[str, np.ndarray]) -> None:
    wrong = describe({"images": IMAGES[::-1]})
    known = HELD.with_described(wrong)
    assert known.described is wrong
    np.testing.assert_array_equal(known.take(np.arange(3)).described.digests, wrong.digests[:3])
    other = replace(known, features=changes)
    np.testing.assert_array_equal(other.described.digests, describe(changes).digests)
    assert known.with_same_values(changes).described is wrong


def test_training_on_targets_that_are_read_at_each_use_is_the_same() -> None:
    held = real_digits(100)
    stored = held.with_each_split(lambda split: replace(split, targets=Streamed.of(split.target_values)))
    assert digest_of(stored.train) == digest_of(held.train)
    [of_held, of_stored] = [
        flat(after_steps(one_device(), one, settings(batch_size=32), steps=5)[0].network) for one in (held, stored)
    ]
    np.testing.assert_array_equal(of_held, of_stored)
