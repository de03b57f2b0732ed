"""Comparison of runs: rows over seeds, what differs, which is best, which differences may be chance."""
