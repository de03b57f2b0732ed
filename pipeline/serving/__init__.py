"""Exported models: find them, predict for files, and serve them over HTTP."""
