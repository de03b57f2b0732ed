"""Plots that stages record."""
