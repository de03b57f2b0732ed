"""A training: its loop over steps and epochs, callbacks, checkpoints, memory."""
