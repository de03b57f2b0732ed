"""The folder of a run: its files, its lock and its status, and how to find it."""
