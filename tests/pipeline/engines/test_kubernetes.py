"""`docs/kubernetes`: manifests that the published schemas take, and whose variables say what each pod is."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.cluster import TfConfigCluster
from pipeline.engines.joined import TfConfig
from stages.settings.strategy import MultiWorkerSettings, ParameterServerSettings
from tests.conftest import ROOT

JOB, TFJOB, SERVERS = (
    ROOT / "docs" / "kubernetes" / name for name in ("job.yaml", "tfjob.yaml", "tfjob-parameter-server.yaml")
)
SCHEMAS = "1.37"
"""Version of Kubernetes."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation in which an indexed Job puts a pod's index."""


def documents(path: Path) -> dict[str, Any]:
    """Returns the documents of a file by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}


def test_the_job_is_what_kubernetes_takes() -> None:
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
    for index, (_, variables) in enumerate(pods_of_job()):
        config = json.loads(variables["TF_CONFIG"])
        assert config == {"cluster": {"worker": names}, "task": {"type": "worker", "index": index}}
    [rule] = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]


@pytest.mark.parametrize("path", [TFJOB, SERVERS], ids=lambda path: path.stem)
def test_a_tfjob_is_what_the_training_operator_takes(path: Path) -> None:
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
def test_dockerfiles_have_nothing_that_hadolint_knows(path: str) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed")
    checked = subprocess.run([program, ROOT / path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stdout) == (0, "")


def pods_of_job() -> list[tuple[list[str], dict[str, str]]]:
    """Returns arguments and variables of each pod of the Job: Kubernetes replaces `$(…)` by variables further up."""
    job = documents(JOB)["Job"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    index_of_pod, config = container["env"]
    assert index_of_pod["name"] == "JOB_COMPLETION_INDEX"
    assert index_of_pod["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{INDEX}']"
    return [
        (
            list(container["args"]),
            {
                "JOB_COMPLETION_INDEX": str(index),
                config["name"]: config["value"].replace("$(JOB_COMPLETION_INDEX)", str(index)),
            },
        )
        for index in range(job["spec"]["completions"])
    ]


def pods_of_tfjob(path: Path = TFJOB) -> list[tuple[list[str], dict[str, str]]]:
    """Returns the same of a TFJob, with the `TF_CONFIG` of the training-operator 1.9 (`genTFConfigJSONStr`)."""
    job = documents(path)["TFJob"]
    kinds = {kind.lower(): replicas for kind, replicas in job["spec"]["tfReplicaSpecs"].items()}
    cluster = {
        kind: [f"{name}.default.svc:2222" for name in names_of(job["metadata"]["name"], kind, replicas["replicas"])]
        for kind, replicas in sorted(kinds.items())  # as Go writes a map
    }
    pods = []
    for kind, replicas in kinds.items():
        [container] = replicas["template"]["spec"]["containers"]
        for index in range(replicas["replicas"]):
            config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
            pods.append((list(container["args"]), {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}))
    return pods


def names_of(job: str, kind: str, replicas: int) -> list[str]:
    return [f"{job}-{kind}-{index}" for index in range(replicas)]


def pods_with_servers() -> list[tuple[list[str], dict[str, str]]]:
    return pods_of_tfjob(SERVERS)


def test_the_image_runs_the_pipeline() -> None:
    [words] = re.findall(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert json.loads(words) == ["python", "-m", "pipeline", "outputs=/outputs"]


@pytest.mark.parametrize("pods", [pods_of_job, pods_of_tfjob])
def test_every_pod_learns_its_place(
    pods: Callable[[], list[tuple[list[str], dict[str, str]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, (arguments, variables) in enumerate(pods()):
        assert {"strategy=multi_worker", "cluster=tf_config"} <= set(arguments)
        monkeypatch.setenv("TF_CONFIG", variables["TF_CONFIG"])
        task = TfConfig(TfConfigCluster()).task(MultiWorkerSettings(deterministic=False))
        assert (task.name, task.is_chief) == (f"worker-{index}", index == 0)


def test_every_pod_of_a_cluster_with_servers_learns_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = []
    for arguments, variables in pods_with_servers():
        assert {"strategy=parameter_server", "cluster=tf_config"} <= set(arguments)
        monkeypatch.setenv("TF_CONFIG", variables["TF_CONFIG"])
        tasks.append(TfConfig(TfConfigCluster()).task(ParameterServerSettings(deterministic=False)))
    assert [task.name for task in tasks] == ["chief-0", "server-0", "worker-0", "worker-1"]
    assert [task.is_chief for task in tasks] == [True, False, False, False]
    assert [task.address for task in tasks][1] == "train-ps-0.default.svc:2222"
