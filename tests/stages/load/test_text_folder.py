"""Folders of texts: their classes and splits, and errors for unusable files."""

from pathlib import Path

import numpy as np
import pytest

from stages.errors import UserError
from stages.load.folders import image_folder, text_folder
from stages.settings.data import ImageFolderSettings, TextFolderSettings
from tests.stages.images import Telling


def write(root: Path, name: str, texts: int = 10) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    for number in range(texts):
        (folder / f"{number}.txt").write_text(f"größe {name} {number}")
    return folder


def settings(root: Path, encoding: str = "utf8") -> TextFolderSettings:
    return TextFolderSettings(dir=str(root), test_fraction=0.2, encoding=encoding)


def test_folders_are_classes_and_splits_are_cut(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        write(tmp_path, name, 50)
    (tmp_path / "bad" / "deep").mkdir()
    (tmp_path / "bad" / "deep" / "empty.TXT").touch()
    (tmp_path / "bad" / "notes.pdf").touch()
    reporter = Telling()
    dataset = text_folder(settings(tmp_path), reporter)
    assert dataset.task.names == ("bad", "good")
    assert [len(split) for split in dataset.splits.values()] == [72, 8, 21]
    assert any("ignored 1 files" in line for line in reporter.lines)
    texts = np.concatenate([split.features["text"][:] for split in dataset.splits.values()])
    assert len({*texts}) == 101
    for split in dataset.splits.values():
        for text, label, file in zip(split.features["text"][:], split.target_values, split.files or (), strict=True):
            assert file.split("/")[0] == dataset.task.names[label]
            assert text == ("" if "empty" in file else (tmp_path / file).read_text())


def test_another_encoding_is_refused_by_name_and_can_be_set(tmp_path: Path) -> None:
    write(tmp_path, "good")
    latin = write(tmp_path, "bad") / "3.txt"
    latin.write_bytes("naïve".encode("latin1"))
    with pytest.raises(UserError, match=r"bad/3\.txt is not encoded in utf8") as caught:
        text_folder(settings(tmp_path))
    assert "\n" not in str(caught.value.args[0])
    texts = np.concatenate(
        [split.features["text"][:] for split in text_folder(settings(tmp_path, encoding="latin1")).splits.values()]
    )
    assert "naïve" in texts
    with pytest.raises(UserError, match="klingon is unknown"):
        text_folder(settings(tmp_path, encoding="klingon"))


def test_folders_without_texts_are_refused(tmp_path: Path) -> None:
    """Fewer than two classes are refused as for images; see tests/stages/data/test_data_messages.py."""
    for name in ("a", "b"):
        write(tmp_path / "none", name, 0)
    with pytest.raises(UserError, match=r"none has no files that end in \.txt in its class folders"):
        text_folder(settings(tmp_path / "none"))
    with pytest.raises(UserError, match=r"none has no files that end in \.jpg, \.jpeg"):
        image_folder(ImageFolderSettings(dir=str(tmp_path / "none"), size=8))
    with pytest.raises(UserError, match=r"data\.dir is not set"):
        TextFolderSettings().check("data")


def test_byte_order_marks_are_not_words_and_determine_the_encoding(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (write(tmp_path, name) / "3.txt").write_text("\ufeffgröße", "utf8")
    texts = [*text_folder(settings(tmp_path)).train.features["text"][:]]
    assert "größe" in texts
    assert not any("\ufeff" in text for text in texts)
    (tmp_path / "bad" / "3.txt").write_text("größe", "utf16")
    with pytest.raises(UserError, match=r"is not encoded in utf8\..* Try: data\.encoding=utf16"):
        text_folder(settings(tmp_path))
