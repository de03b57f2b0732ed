"""The folder of a run: found, locked, read, rebuilt where it is damaged, and sent to the store."""
