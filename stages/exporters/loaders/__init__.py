"""Loaders of exported files: each a Python file that imports the format's runtime and nothing of this project."""
