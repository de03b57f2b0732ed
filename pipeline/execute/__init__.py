"""A run in its process: its stages are run and recorded, its plan and results printed."""
