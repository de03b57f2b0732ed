"""Secrets: found by name, value and shape, and masked."""
