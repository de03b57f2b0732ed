"""A training: its phases, epochs and steps, its memory and its result."""
