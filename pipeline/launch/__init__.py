"""Engines: where the members of a cluster run. Some start them, others learn which one this is."""
