"""Tracking of runs: in MLflow, in a custom store, or not at all. Trackers are passed as arguments."""
