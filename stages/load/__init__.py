"""The `load` stage: one function per kind of data source."""
