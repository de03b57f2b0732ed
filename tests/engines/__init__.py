"""Tests on clusters that other programs make: Slurm. `make test-engines` installs them."""
