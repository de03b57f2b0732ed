"""Stages of debug runs, each in the module that bears its name."""
