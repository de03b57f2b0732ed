"""Comparison of runs: their settings and results, the best combination, and differences that may be chance."""
