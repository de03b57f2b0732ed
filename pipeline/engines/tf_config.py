"""`cluster=tf_config`: the place of this process is in `TF_CONFIG`, as Kubernetes' TFJob and Vertex AI set it."""

import json
import os
from typing import Any

from pipeline.cluster.task import Task, WrongTaskError, check_task, jobs_of
from pipeline.run.engine import Joined
from stages.errors import UserError
from stages.settings.strategy import ParameterServerSettings, StrategySettings


class TfConfig(Joined):
    """Every member is started with its own `TF_CONFIG`."""

    def task(self, strategy: StrategySettings) -> Task:
        return task_of_environment(strategy)


def task_of_environment(strategy: StrategySettings) -> Task:
    """Returns the task that `TF_CONFIG` gives this process.

    Raises:
        UserError: where it is not set, or does not describe a cluster for the strategy.
    """
    text = os.environ.get("TF_CONFIG")
    form = 'TF_CONFIG=\'{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}\''
    if isinstance(strategy, ParameterServerSettings):
        form = form.replace('{"worker"', '{"chief": ["host:port"], "ps": ["host:port", …], "worker"')
    expected = f"a cluster of {', '.join(jobs_of(strategy))} and this process's task in it"
    if not text:
        raise UserError("cluster=tf_config, but TF_CONFIG is not set", expected, form)
    try:
        task = _parsed(text)
        check_task(task, strategy)
    except WrongTaskError as error:
        raise UserError(f"TF_CONFIG={' '.join(text.split())[:200]}: {error}", expected, form) from error
    return task


def _parsed(text: str) -> Task:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongTaskError(f"no JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("cluster"), dict):
        raise WrongTaskError("no object with a `cluster`, which is an object")
    if not isinstance(document.get("task"), dict):
        raise WrongTaskError("no `task`, an object with `type` and `index`")
    cluster: dict[str, list[str]] = {}
    for job, addresses in document["cluster"].items():
        if not isinstance(addresses, list) or not addresses or not all(isinstance(text, str) for text in addresses):
            raise WrongTaskError(f"`cluster.{job}` is no list of addresses")
        cluster[job] = addresses
    job, index = document["task"].get("type"), document["task"].get("index")
    if not isinstance(job, str) or job not in cluster:
        raise WrongTaskError(f"the task's type {job!r} is not in `cluster`")
    if isinstance(index, str) and index.isdecimal() and index.isascii():
        index = int(index[:9])
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(cluster[job]):
        raise WrongTaskError(f"the task's index {index!r} is not one of {job}'s 0 to {len(cluster[job]) - 1}")
    return Task(job, index, cluster)
