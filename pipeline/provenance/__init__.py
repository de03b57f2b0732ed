"""Provenance of a run: a digest of its settings, its source code, its packages and machine."""
