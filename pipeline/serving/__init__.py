"""Exported models: find a model, predict with it for files, and serve it over HTTP."""
