"""Comparison of runs: rows over seeds, what differs, which is best, what the data can tell."""
