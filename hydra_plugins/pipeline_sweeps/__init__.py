"""Hydra's plugins: the sweeper that makes the grid, and the launcher that gives every job a process of its own."""
