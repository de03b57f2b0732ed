"""`docs/kubernetes`: manifests that the published schemas take, and whose pods' processes train as one machine does."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import commands
from tests.pipeline.cluster.hosts import ROOT, two_hosts
from tests.pipeline.experiments import BARE

JOB, TFJOB = (ROOT / "docs" / "kubernetes" / name for name in ("job.yaml", "tfjob.yaml"))
SCHEMAS = "1.37"
"""Version of Kubernetes."""

INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation in which an indexed Job puts a pod's index."""

SMALL = ("train.epochs=1", "model.network.filters=[8,16]", "seed=3", "tracking=off", *BARE)


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


def test_the_tfjob_is_what_the_training_operator_takes() -> None:
    pytest.importorskip("kubeflow.training")
    from kubeflow.training.api_client import ApiClient

    [document] = documents(TFJOB).values()
    response = type("Response", (), {"data": json.dumps(document)})
    client = ApiClient()
    assert client.sanitize_for_serialization(client.deserialize(response, "KubeflowOrgV1TFJob")) == document
    [container] = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
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


def pods_of_tfjob() -> list[tuple[list[str], dict[str, str]]]:
    """Returns the same of the TFJob, with the `TF_CONFIG` of the training-operator 1.9 (`genTFConfigJSONStr`)."""
    job = documents(TFJOB)["TFJob"]
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    [container] = worker["template"]["spec"]["containers"]
    addresses = [f"{job['metadata']['name']}-worker-{index}.default.svc:2222" for index in range(worker["replicas"])]
    cluster = {"worker": addresses}
    return [
        (
            list(container["args"]),
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}, "environment": "cloud"},
                    separators=(",", ":"),
                )
            },
        )
        for index in range(worker["replicas"])
    ]


def losses(outputs: Path) -> list[float]:
    """Returns losses of the one run in `outputs`."""
    [summary] = outputs.glob("runs/*/*/summary.json")
    metrics = json.loads(summary.read_text())["metrics"]
    return [metrics[name] for name in ("train/loss", "val/loss", "test/loss")]


@pytest.mark.slow
@pytest.mark.engines
def test_pods_train_as_one_machine_does(tmp_path: Path) -> None:
    entry = shlex.split(_entry_point())
    assert entry[:3] == ["python", "-m", "pipeline"]
    arguments = [text for text in pods_of_job()[0][0] if not text.startswith(("cluster", "tracking"))]
    alone = commands.run(*arguments, *SMALL, f"outputs={tmp_path / 'alone'}", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    expected = losses(tmp_path / "alone")
    for kind, pods, names in (
        ("job", pods_of_job(), ("train-0.train", "train-1.train")),
        ("tfjob", pods_of_tfjob(), ("train-worker-0.default.svc", "train-worker-1.default.svc")),
    ):
        with two_hosts(names) as hosts:
            started = [
                host.start(
                    *[text for text in arguments if not text.startswith("tracking")],
                    *SMALL,
                    f"outputs={tmp_path / kind}",
                    log=tmp_path / f"{kind}-{index}.log",
                    environment={**variables, "CUDA_VISIBLE_DEVICES": "-1"},
                )
                for index, (host, (arguments, variables)) in enumerate(zip(hosts, pods, strict=True))
            ]
            try:
                codes = [process.wait(240) for process in started]
            finally:
                for process in started:
                    process.kill()
        printed = "\n".join(path.read_text() for path in tmp_path.glob(f"{kind}-*.log"))
        assert codes == [0, 0], printed
        assert losses(tmp_path / kind) == pytest.approx(expected, rel=1e-6), printed


def _entry_point() -> str:
    """Returns the command of the Dockerfile."""
    [words] = re.findall(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return " ".join(json.loads(words))
