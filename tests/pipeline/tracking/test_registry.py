"""Registered models, and the alias that moves to the better model on the same test examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from pipeline.runs.journal import Journal
from pipeline.tracking.mlflow_run import Registry
from stages.results import Exported
from tests.pipeline.tracking.journals import begin, client, folder_of
from tests.stages.evaluation import made

pytestmark = pytest.mark.slow

LABELS = np.arange(400) % 2
NAME, ALIAS = "digits", "champion"


def registered_run(
    outputs: Path, name: str, wrong: int, labels: np.ndarray = LABELS, promote_if: str = "better"
) -> list[str]:
    """Record a run whose model errs on the first `wrong` examples, and register it; return the notes of the store."""
    tracker = begin(outputs, name)
    folder = folder_of(outputs, name)
    (folder / "export" / "saved_model").mkdir(parents=True)
    (folder / "export" / "saved_model" / "saved_model.pb").write_bytes(b"")
    (folder / "export" / "model_card.md").write_text(f"# {name}\n")
    if labels.dtype.kind == "i":
        values = np.eye(2, dtype=np.float32)[np.where(np.arange(len(labels)) < wrong, 1 - labels, labels)]
        tracker.artifact(made.write(folder, labels, values))
    else:
        numbers = labels + np.random.default_rng(wrong).normal(0, 1 + wrong, len(labels))
        tracker.artifact(made.write_numbers(folder, labels, numbers))
    tracker.model(Exported(folder / "export" / "saved_model", (8, 8, 1), ("a", "b"), 0.0))
    tracker.register(NAME, ALIAS, promote_if, 0.95)
    tracker.status("FINISHED")
    assert tracker.flush(seconds=20) == 0
    assert tracker.close() == 0
    return tracker.notes


def champion(store: MlflowClient) -> str:
    return str(store.get_registered_model(NAME).aliases[ALIAS])


def test_a_model_is_logged_without_a_scan_of_all_packages(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[dict[str, list[str]]] = [{}]
    monkeypatch.setattr("mlflow.utils.requirements_utils._MODULES_TO_PACKAGES", None)
    monkeypatch.setattr("importlib_metadata.packages_distributions", looks.pop)
    registered_run(outputs, "one", wrong=1)
    assert looks == [{}]


def test_the_alias_moves_to_a_better_model_only_and_the_reason_is_reported(outputs: Path) -> None:
    registered, verdict = registered_run(outputs, "first", wrong=40)
    assert registered == "registered as digits, version 1: models:/digits/1"
    assert verdict == "champion of digits is now version 1: there was none"
    store = client(outputs)
    version = store.get_model_version(NAME, "1")
    assert version.description == "# first\n"
    run = store.get_run(version.run_id)
    assert run.data.tags["model_uri"] == version.source
    assert run.data.tags["registered_as"] == registered

    assert registered_run(outputs, "same", wrong=38)[1] == (
        "champion of digits stays version 1: accuracy +0.50 points (95% CI \N{MINUS SIGN}0.52 to +1.81)"
    )
    worse = registered_run(outputs, "worse", wrong=50)[1]
    assert worse.startswith("champion of digits stays version 1: accuracy \N{MINUS SIGN}2.50 points")
    other = registered_run(outputs, "other", wrong=0, labels=1 - LABELS)[1]
    why = "it was tested on other examples, so the two cannot be compared"
    assert other == f"champion of digits stays version 1: {why}"
    assert champion(store) == "1"

    better = registered_run(outputs, "better", wrong=10)[1]
    moved = "champion of digits is now version 5 (before: version 1)"
    assert better.startswith(f"{moved}: accuracy +7.50 points")
    assert store.get_model_version(NAME, "5").tags["promotion.champion"] == better
    higher = registered_run(outputs, "higher", wrong=9, promote_if="higher")[1]
    assert "is now version 6 (before: version 5): accuracy +0.25" in higher
    always = registered_run(outputs, "always", wrong=99, promote_if="always")[1]
    assert always.endswith("version 6): export.promote_if=always")
    assert champion(store) == "7"


def test_for_regression_the_lower_error_is_promoted(outputs: Path) -> None:
    targets = np.random.default_rng(0).normal(size=300)
    for name, wrong in (("first", 3), ("worse", 4), ("better", 2)):
        verdict = registered_run(outputs, name, wrong, targets)[1]
    assert "champion of digits is now version 3 (before: version 1): rmse" in verdict
    assert "lower is better" in verdict
    higher = registered_run(outputs, "higher", 1, targets, promote_if="higher")[1]
    assert higher.startswith("champion of digits is now version 4")


def test_an_alias_that_moves_during_the_comparison_stays_with_the_better_model(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered_run(outputs, "first", wrong=40)
    compared = Registry.compared_with

    def during(*given: Any) -> tuple[bool, str]:
        monkeypatch.setattr(Registry, "compared_with", compared)
        verdict = compared(*given)
        assert "is now version 3" in registered_run(outputs, "best", wrong=1)[1]
        return verdict

    monkeypatch.setattr(Registry, "compared_with", during)
    assert "stays version 3: accuracy \N{MINUS SIGN}" in registered_run(outputs, "good", wrong=10)[1]
    assert champion(client(outputs)) == "3"


def test_an_entry_that_is_sent_twice_registers_once_and_does_not_move_the_alias_back(outputs: Path) -> None:
    registered_run(outputs, "first", wrong=40, promote_if="always")
    registered_run(outputs, "second", wrong=50, promote_if="always")
    Journal(folder_of(outputs, "first")).send_again()
    tracker = begin(outputs, "first")
    assert tracker.close(60) == 0
    assert tracker.notes[0] == "registered as digits, version 1: models:/digits/1"
    assert len(client(outputs).search_model_versions(f"name = '{NAME}'")) == 2
    assert champion(client(outputs)) == "2"


def test_a_version_without_a_run_keeps_the_alias_and_the_new_one_is_registered(outputs: Path) -> None:
    """If the run was deleted, or another program made the version, the run reports that it cannot compare."""
    registered_run(outputs, "first", wrong=40)
    store = client(outputs)
    run = store.get_model_version(NAME, "1").run_id
    store.delete_run(run)
    store._tracking_client.store._hard_delete_run(run)
    for version in ("1", store.create_model_version(NAME, str(outputs), None).version):
        store.set_registered_model_alias(NAME, ALIAS, version)
        registered, verdict = registered_run(outputs, f"against {version}", wrong=20)
        assert "registered as digits, version" in registered
        assert f"stays version {version}: " in verdict
        ends = "no longer has its run, so the two cannot be compared", "no predictions.parquet)"
        assert verdict.endswith(ends)
