"""Devices, replicas and workers: strategies, collectives."""
