"""A training: the trainer, its state, the training step, and the engines that take the steps."""
