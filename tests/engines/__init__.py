"""Tests on what other programs make: a Slurm cluster, an environment of its own. See `make test-engines`."""
