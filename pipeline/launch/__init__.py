"""Launchers: they start runs, here or elsewhere, in one process or several; one loop watches them."""
