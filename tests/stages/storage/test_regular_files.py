"""Files by their names and folders by their content."""

from pathlib import Path

import pytest

from stages.checkpoints.files import Checkpoint, write
from stages.checkpoints.names import checkpoint_files
from stages.settings.places import content_digest


@pytest.mark.parametrize(
    "name", ["step-abc.npz", "step-.npz", "step-٣.npz", "step-7.npz\n", "STEP-7.npz", "step-3-2.npz"]
)
def test_names_that_only_look_like_a_checkpoints(name: str, tmp_path: Path) -> None:
    write(Checkpoint({"step": 3}), tmp_path / "step-00000003.npz")
    (tmp_path / name).write_bytes(b"?")
    assert [path.name for path in checkpoint_files(tmp_path)] == ["step-00000003.npz"]


def test_the_digest_of_a_folder_is_of_its_content(tmp_path: Path) -> None:
    """Also in a process that has computed it before, such as a notebook's."""
    for name in ("one", "other"):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "a").write_text("a")
    first = content_digest(str(tmp_path / "one"))
    assert first == content_digest(str(tmp_path / "other"))
    (tmp_path / "one" / "inside" / "a").write_text("ab")
    changed = content_digest(str(tmp_path / "one"))
    (tmp_path / "other" / "inside" / "a").rename(tmp_path / "other" / "b")
    assert len({first, changed, content_digest(str(tmp_path / "other"))}) == 3
