"""Decisions before a run starts: what a command will do, and refusals of what cannot work."""
