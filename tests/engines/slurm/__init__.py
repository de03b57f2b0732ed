"""Slurm as Debian packages it: real daemons of a cluster of three nodes on this machine, while a test needs them."""
