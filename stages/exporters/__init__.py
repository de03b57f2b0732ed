"""Formats of export: a trained model as files that need nothing of this project."""
