"""The recorded code of a run, tested with real repositories."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.command_line.arguments import COMMAND_LINE
from pipeline.provenance import code_state


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "net.py").write_text("layers = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_changes_are_in_the_diff_and_the_index_is_unchanged(repository: Path) -> None:
    clean = code_state.code_state(repository)
    assert clean is not None
    assert (len(clean.commit), clean.dirty, clean.diff) == (40, False, "")
    (repository / "net.py").write_text("layers = 2\n")
    before = git(repository, "status", "--porcelain")
    state = code_state.code_state(repository)
    assert state is not None
    assert state.dirty
    assert git(repository, "status", "--porcelain") == before
    git(repository, "stash", "--quiet")
    subprocess.run(["git", "apply", "-"], input=state.diff.encode(), cwd=repository, check=True)
    assert (repository / "net.py").read_text() == "layers = 2\n"


def test_the_recorded_command_of_a_run_resumed_by_name_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, flags = ["model=mlp", "seed=3"], ["--config-dir", str(tmp_path)]
    shown = f"python -m pipeline --config-dir {tmp_path}"
    for typed in (["resume='4e123456'", "seed=3"], ["seed=3", "resume=outputs/runs/a/b"]):
        monkeypatch.setattr("sys.argv", ["pipeline", *flags, *typed])
        assert code_state.command(own) == f"{shown} model=mlp seed=3"
        assert "resume=made" in code_state.resuming_command("made")
    for typed in (own, [*own, "resume=auto"], [*own, "resume=never"]):
        monkeypatch.setattr("sys.argv", ["pipeline", *flags, *typed])
        assert code_state.command(["left=out"]) == f"{shown} {' '.join(typed)}"
        assert code_state.resuming_command("made") == f"{shown} {' '.join(typed)}".removesuffix(" resume=never")


def test_a_large_diff_is_cut_with_a_note(repository: Path) -> None:
    (repository / "net.py").write_text("x = 1\n" * 400_000)
    state = code_state.code_state(repository)
    assert state is not None
    assert code_state.DIFF_LIMIT <= len(state.diff) <= code_state.DIFF_LIMIT + 100
    assert state.diff.endswith(" characters]\n")


def test_a_repository_without_commits_and_no_repository(tmp_path: Path) -> None:
    assert code_state.code_state(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    (tmp_path / "new.py").write_text("a = 1\n")
    state = code_state.code_state(tmp_path)
    assert state is not None
    assert (state.commit, state.dirty) == ("none", True)
    assert not state.diff


def test_a_diff_has_no_secrets_and_no_new_files(repository: Path) -> None:
    (repository / ".env").write_text("SMTP_PASS=1\n")
    (repository / "conf.yaml").write_text("host: a\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "second")
    (repository / ".env").write_text("SMTP_PASS=ordinary-looking-but-secret\n")
    (repository / "conf.yaml").write_text("host: b\ndb_password: 'tulips and roses'\n")
    (repository / "net.py").write_text("layers = 2\ntoken = tokenizer.next()\n")
    (repository / "new.py").write_text("password = 'not seen by git'\n")
    kept = code_state.code_state(repository)
    assert kept is not None
    for secret in ("ordinary", "tulips", "not seen"):
        assert secret not in kept.diff
    for ordinary in ("+layers = 2", "+token = tokenizer.next()", "+host: b", "+db_password: '***'", ".env"):
        assert ordinary in kept.diff


def test_packages_have_versions_and_no_addresses() -> None:
    text = code_state.packages()
    assert "tensorflow==2.21" in text
    assert "://" not in text
    assert code_state.versions()["keras"].startswith("3.15")


@pytest.mark.parametrize("never", ["++resume=never", "resume='never'"])
def test_the_resuming_command_does_not_start_a_new_run(never: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pipeline", "train.epochs=3", never, "tracking.note=resume=never again"])
    assert code_state.resuming_command() == "python -m pipeline train.epochs=3 'tracking.note=resume=never again'"
    assert never.replace("'", "") in code_state.command().replace("'", "")


def test_runs_in_two_threads_each_have_their_own_command() -> None:
    def shown(words: tuple[str, ...]) -> str:
        COMMAND_LINE.set(("pipeline", *words))
        return code_state.command()

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(shown, [("seed=1",), ("seed=2",)])] == [
            f"python -m pipeline seed={seed}" for seed in (1, 2)
        ]
