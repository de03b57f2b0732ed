"""Which example goes where is a pure function of (seed, epoch, position)."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from stages.augment import Augmentation, augment
from stages.data.batches import evaluation_input, order, steps_per_epoch, training_input
from stages.data.split import Split
from stages.results import Dataset
from stages.settings.data import AugmentSettings
from tests.stages.experiments import assemble, elements, strong

pytestmark = pytest.mark.slow


def numbered(train: int, val: int = 5) -> Dataset:
    """Return a data set of noise whose labels number the examples."""

    def split(examples: int) -> Split:
        images = np.random.default_rng(examples).integers(0, 256, (examples, 4, 4, 3)).astype(np.float32)
        return Split.of_images(images, np.arange(examples, dtype=np.int32))

    names = tuple(map(str, range(max(train, val))))
    return assemble("numbered", split(train), split(val), split(val), names, (0, 255))


CHANGES = {
    "none": AugmentSettings(),
    "flip_rotate": AugmentSettings(horizontal_flip=True, vertical_flip=True, rotation=0.2),
    "strong": strong(),
    "cutmix alone": AugmentSettings(cutmix=1.0),
    "in the step": AugmentSettings(rotation=0.2, where="model"),
}


def labels(source: object, replicas: int = 1) -> list[list[int]]:
    return [list(element[1][element[2] > 0]) for element in elements(source, replicas)]


@pytest.mark.smoke
@pytest.mark.parametrize("examples", [1, 2, 7, 50, 1000])
def test_every_epoch_is_another_permutation_of_the_split(examples: int) -> None:
    per_epoch = steps_per_epoch(numbered(examples).train, 16)
    batches = labels(training_input(numbered(examples), 16, seed=3, epochs=3))
    starts = range(0, len(batches), per_epoch)
    epochs = [list(itertools.chain(*batches[start : start + per_epoch])) for start in starts]
    assert len(epochs) == 3
    for epoch in epochs:
        assert sorted(epoch) == list(range(examples))
    if examples > 7:
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        assert epochs[0] != list(range(examples))


def test_the_permutation_is_uniform() -> None:
    """Over 1,000 epochs: mean positions as chance has them, and neighbours that stay neighbours as rarely."""
    orders = tf.map_fn(lambda epoch: order(100, 5, epoch), tf.range(1000), fn_output_signature=tf.int64).numpy()
    standard_error = np.std(np.arange(100)) / np.sqrt(1000)
    assert np.abs(orders.mean(axis=0) - 49.5).max() < 4.5 * standard_error
    stayed = (np.diff(orders, axis=1) == 1).mean()
    assert stayed == pytest.approx(0.01, abs=0.001)


@pytest.mark.parametrize(
    ("first_step", "changes"),
    [(1, "none"), (5, "strong"), (5, "in the step"), (11, "flip_rotate"), (11, "cutmix alone")],
)
def test_an_input_that_starts_late_yields_what_the_whole_one_would(first_step: int, changes: str) -> None:
    dataset = augment(numbered(50), CHANGES[changes])
    whole = elements(training_input(dataset, 16, 3, 3))
    late = elements(training_input(dataset, 16, 3, 3, first_step))
    assert len(late) == len(whole) - first_step
    for expected, got in zip(whole[first_step:], late, strict=True):
        for one, other in zip(expected, got, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("examples", "replicas", "changes"), [
    *((64, 3, "flip_rotate"), (63, 2, "flip_rotate"), (63, 4, "flip_rotate"), (34, 2, "flip_rotate")),
    *((34, 4, "flip_rotate"), (33, 2, "flip_rotate"), (33, 3, "flip_rotate")),
    *itertools.product([34], [3], ["none", "strong", "cutmix alone", "in the step"]),
])  # fmt: skip
def test_replicas_share_each_batch_of_one_device(examples: int, replicas: int, changes: str) -> None:
    """To the bit: images, labels, weights, and random numbers where the step is to augment.

    Batches that divide or not, and last ones of fifteen examples, of two and of one, for fewer and for more replicas.
    """
    dataset = augment(numbered(examples), CHANGES[changes])
    whole = elements(training_input(dataset, 16, 3, 2))
    parts = elements(training_input(dataset, 16, 3, 2), replicas)
    for step, expected in enumerate(whole):
        shares = parts[step * replicas : (step + 1) * replicas]
        few = len(expected[2]) < replicas  # each has them all
        for index, column in enumerate(expected):
            if few:
                wanted = column / replicas if index == 2 else column
                for part in shares:
                    np.testing.assert_array_equal(part[index], wanted.astype(column.dtype))
            else:
                np.testing.assert_array_equal(np.concatenate([part[index] for part in shares]), column)
        sizes = [len(part[1]) for part in shares]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("replicas", "changes"), [(1, "flip_rotate"), (4, "flip_rotate"), (3, "strong"), (3, "in the step")]
)
def test_fixed_shapes_fill_up_with_rows_that_count_nothing(replicas: int, changes: str) -> None:
    """What a TPU needs: the same examples in the same places, in batches of one shape."""
    dataset = augment(numbered(50), CHANGES[changes])
    plain = elements(training_input(dataset, 16, 3, 2), replicas)
    fixed = elements(training_input(dataset, 16, 3, 2, fixed_shapes=True), replicas)
    rows = -(-16 // replicas)
    for one, other in zip(plain, fixed, strict=True):
        assert other[0].shape == (rows, 4, 4, 3)
        count = len(one[1])
        for some, filled in zip(one, other, strict=True):
            np.testing.assert_array_equal(some, filled[:count])
        assert (other[2][count:] == 0).all()


def test_every_example_of_every_step_has_random_numbers_of_its_own() -> None:
    dataset = augment(numbered(50), CHANGES["in the step"])
    numbers = [np.concatenate([e[3] for e in elements(training_input(dataset, 16, seed, 3))]) for seed in (3, 4)]
    assert numbers[0].shape == (150, Augmentation(CHANGES["in the step"]).randoms)
    assert len(np.unique(np.concatenate(numbers)[:, 0])) == 300


@pytest.mark.parametrize("changes", ["strong", "in the step"])
def test_evaluation_keeps_the_order_and_changes_nothing(changes: str) -> None:
    dataset = augment(numbered(20), CHANGES[changes])
    batches = elements(evaluation_input(dataset.train, 8))
    assert all(len(batch) == 3 for batch in batches)
    np.testing.assert_array_equal(np.concatenate([batch[0] for batch in batches]), dataset.train.images)
    np.testing.assert_array_equal(np.concatenate([batch[1] for batch in batches]), dataset.train.targets)
