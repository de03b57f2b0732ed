"""Evaluation of a model on a split."""
