"""Metrics, each defined once for training, tests, intervals, slices and comparisons. Importing one needs only NumPy."""
