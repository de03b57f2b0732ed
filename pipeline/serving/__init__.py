"""Exported models in use: found by run or by name, served over HTTP."""
