"""`python -m benchmarks.baselines.as_arrays FOLDER FILE`: writes MNIST's training images and labels to an .npz."""

import sys

import numpy as np
import tensorflow_datasets as tfds

folder, path = sys.argv[1:]
images, labels = tfds.as_numpy(tfds.load("mnist", split="train", data_dir=folder, as_supervised=True, batch_size=-1))
np.savez(path, images=images, labels=labels)
