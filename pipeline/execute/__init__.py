"""Execute a run in this process: run its stages, record them, and print the plan and the results."""
