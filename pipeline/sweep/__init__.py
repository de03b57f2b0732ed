"""Sweeps: their jobs, their index, the comparison of their runs."""
