"""Names of facts by which runs are known to be comparable."""

VALIDATED = "val_examples"
"""In the facts of a summary: a digest of the examples by which the best epoch was chosen."""

VALIDATED_PIXELS = "val_pixels"
"""In the facts of a summary: the kind of their images, and a digest of all their pixels."""

VALIDATED_LOSS = "val_loss"
"""In the facts of a summary: settings of a loss that is not the task's, and PENALIZED where a network adds to it."""

PENALIZED = "penalized"

KNOWN_IMAGES = "known_test_images"
"""In the facts of a summary: how many test examples a reused model was trained on."""
