"""Searches: sweeps whose next job depends on the results of those before, by Optuna."""
