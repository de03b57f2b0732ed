"""The Slurm job that this process belongs to, for the records of a run."""

import os

SLURM_TAGS = {
    "slurm.job_id": "SLURM_JOB_ID",
    "slurm.nodes": "SLURM_JOB_NODELIST",
    "slurm.partition": "SLURM_JOB_PARTITION",
    "slurm.requeues": "SLURM_RESTART_COUNT",
}
"""Tags of a run, and the variables with their values that Slurm sets in every process of a job."""


def place_tags() -> dict[str, str]:
    """Return tags with the Slurm job that this process belongs to; empty outside of Slurm."""
    return {tag: os.environ[name] for tag, name in SLURM_TAGS.items() if name in os.environ}
