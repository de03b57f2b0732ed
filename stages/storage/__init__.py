"""Files: written whole or not at all, and shared between runs."""
