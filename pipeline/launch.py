"""One job, in this process or in a cluster of them."""

from pipeline.cluster import cluster_settings, given_task
from pipeline.combinations import advice
from pipeline.console import Console
from pipeline.job import DONE, Job, prepare, work
from pipeline.supervisor import run_cluster


def run_job(job: Job, console: Console) -> int:
    """Runs `job` and returns its exit code.

    Raises:
        UserError: where the configuration is wrong; nothing has been recorded then.
    """
    experiment = job.experiment
    plan = prepare(experiment)
    console.plan(experiment, plan)
    for line in advice(experiment):
        console.warn(line)
    if experiment.dry_run:
        return DONE
    settings = cluster_settings(experiment)
    if settings is None:
        return work(job, plan, console)
    if experiment.cluster.kind == "local":
        return run_cluster(job, plan, console)
    return work(job, plan, console, given_task(settings))
