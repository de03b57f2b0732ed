"""Decisions before a run starts: what a command will do, and errors for what cannot work."""
