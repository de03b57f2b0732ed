"""Searches with Optuna: sweeps in which each job depends on the results of earlier jobs."""
