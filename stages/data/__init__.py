"""Data sets: read, decoded, prepared, divided into splits, and batched."""
