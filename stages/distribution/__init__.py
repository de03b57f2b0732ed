"""Devices, replicas and workers: strategies, collectives, sharded variables."""
