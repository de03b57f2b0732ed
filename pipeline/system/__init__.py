"""The machine and the process: environment, signals, streams, processes."""
