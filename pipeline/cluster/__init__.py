"""Clusters of processes: who is who, and how members meet."""
