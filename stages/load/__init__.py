"""The `load` stage: one function for each kind of source."""
