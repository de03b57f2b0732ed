"""Provenance of a run: its settings as a digest, its source code and its packages."""
