"""Decisions before a run begins: its job, its stages, and the earlier run that it resumes, forks or reuses."""
