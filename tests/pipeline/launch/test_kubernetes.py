"""`docs/kubernetes`: the published schemas accept the manifests, and their variables give each pod its task."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.cluster import TfConfigCluster
from pipeline.execute.task import Task
from pipeline.launch.joined import TfConfig
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings, StrategySettings
from tests.conftest import ROOT

NAMES = ("job", "tfjob", "tfjob-parameter-server")
JOB, TFJOB, SERVERS = (ROOT / "docs" / "kubernetes" / f"{name}.yaml" for name in NAMES)
SCHEMAS = "1.37"
"""Version of Kubernetes."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation in which an indexed Job stores the index of a pod."""

Pods = list[tuple[list[str], str]]
"""The arguments and the `TF_CONFIG` of each pod."""


def documents(path: Path) -> dict[str, Any]:
    """Return the documents of a file by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}


def test_kubernetes_accepts_the_job() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    made = documents(JOB)
    assert set(made) == {"Service", "Job", "NetworkPolicy"}
    for document in made.values():
        validator.validate(document, SCHEMAS, strict=True)
    job, service = made["Job"], made["Service"]
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    workers = job["spec"]["completions"]
    assert workers == job["spec"]["parallelism"]
    names = [f"{job['metadata']['name']}-{index}.{pod['subdomain']}:2222" for index in range(workers)]
    for index, (_, config) in enumerate(pods_of_job()):
        assert json.loads(config) == {"cluster": {"worker": names}, "task": {"type": "worker", "index": index}}
    [rule] = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]


@pytest.mark.parametrize("path", [TFJOB, SERVERS], ids=lambda path: path.stem)
def test_the_training_operator_accepts_a_tfjob(path: Path) -> None:
    pytest.importorskip("kubeflow.training")
    from kubeflow.training.api_client import ApiClient

    [document] = documents(path).values()
    response = type("Response", (), {"data": json.dumps(document)})
    client = ApiClient()
    assert client.sanitize_for_serialization(client.deserialize(response, "KubeflowOrgV1TFJob")) == document
    for replicas in document["spec"]["tfReplicaSpecs"].values():
        [container] = replicas["template"]["spec"]["containers"]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]


@pytest.mark.parametrize("path", ["Dockerfile", "docs/serving/Dockerfile"])
def test_hadolint_reports_nothing_about_the_dockerfiles(path: str) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed")
    checked = subprocess.run([program, ROOT / path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout) == (0, "")


def pods_of_job() -> Pods:
    """Return the pods of the Job. Kubernetes replaces `$(…)` by variables that are defined earlier."""
    job = documents(JOB)["Job"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    number, config = container["env"]
    assert (number["name"], config["name"]) == ("JOB_COMPLETION_INDEX", "TF_CONFIG")
    assert number["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{INDEX}']"
    pods = range(job["spec"]["completions"])
    return [(container["args"], config["value"].replace("$(JOB_COMPLETION_INDEX)", str(index))) for index in pods]


def pods_of_tfjob(path: Path) -> Pods:
    """Return the pods of a TFJob, with the `TF_CONFIG` that training-operator 1.9 sets (`genTFConfigJSONStr`)."""
    job = documents(path)["TFJob"]
    kinds = {kind.lower(): replicas for kind, replicas in job["spec"]["tfReplicaSpecs"].items()}
    name = job["metadata"]["name"]
    cluster = {
        kind: [f"{name}-{kind}-{index}.default.svc:2222" for index in range(replicas["replicas"])]
        for kind, replicas in sorted(kinds.items())  # as Go writes a map
    }
    pods = []
    for kind, replicas in kinds.items():
        [container] = replicas["template"]["spec"]["containers"]
        for index in range(replicas["replicas"]):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
            pods.append((container["args"], json.dumps(config, separators=(",", ":"))))
    return pods


def tasks(pods: Pods, name: str, strategy: StrategySettings, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Return the task that each pod reads from its environment."""
    found = []
    for arguments, config in pods:
        assert {f"strategy={name}", "cluster=tf_config"} <= set(arguments)
        monkeypatch.setenv("TF_CONFIG", config)
        found.append(TfConfig(TfConfigCluster()).task(strategy))
    return found


def test_the_image_runs_the_pipeline() -> None:
    [words] = re.findall(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert json.loads(words) == ["python", "-m", "pipeline", "outputs=/outputs"]


def test_every_pod_has_its_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for pods in (pods_of_job(), pods_of_tfjob(TFJOB)):
        found = tasks(pods, "multi_worker", MultiWorkerSettings(deterministic=False), monkeypatch)
        assert [task.name for task in found] == [f"worker-{index}" for index in range(len(pods))]
        assert [task.is_chief for task in found] == [True] + [False] * (len(pods) - 1)
    servers = ParameterServerSettings(deterministic=False)
    found = tasks(pods_of_tfjob(SERVERS), "parameter_server", servers, monkeypatch)
    assert [task.name for task in found] == ["chief-0", "server-0", "worker-0", "worker-1"]
    assert [task.is_chief for task in found] == [True, False, False, False]
    assert found[1].address == "train-ps-0.default.svc:2222"
