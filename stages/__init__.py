"""What an experiment does: one module a stage, and the parts they are made of. Knows nothing of `pipeline`."""
