"""Checkpoints: the state of a training, written to files, restored when a run is resumed or forked."""
