"""The examples of docs/gallery: their commands run in the order of the page, with the results that the page shows."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.command_line.arguments import verb_of
from pipeline.runs.summary import Summary
from pipeline.system.signals import until
from tests import commands
from tests.conftest import ROOT, outputs_in, shared
from tests.pipeline.experiments import last
from tests.servers import wait_for

pytestmark = pytest.mark.slow

FOLDER = ROOT / "docs" / "gallery"
PICTURES = ROOT / "docs" / "images" / "gallery"
LARGEST = 200 * 1024
"""Maximum number of bytes of a picture."""

WEIGHTS = ("weights", "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_224_no_top.h5")

TOLERANCE = 0.03
"""Tolerance of an accuracy on a page, which may differ on other machines and with other versions."""


@dataclass(frozen=True)
class Example:
    """How the tests run a page.

    Attributes:
        sooner: Settings that shorten its training commands, so all pages together take a minute.
        is_exact: Whether the shortened commands still reach the figures of the page.
        labels: The first words of lines that are both on the page and in the output of its commands.
    """

    sooner: dict[str, str]
    is_exact: bool
    labels: tuple[str, ...] = ()


RUN = ("run", "folder", "best epoch", "test", "verdict")
SEARCH = ("best trial", "run it", "comparison")
BARE = {"pipeline.inspect": "null", "pipeline.export": "null", "tracking": "off"}
SMALL = {"model.network.filters": "[4,8]"}

EXAMPLES = {
    "photos": Example({"train.epochs": "2", "data.size": "96", **BARE}, is_exact=False, labels=RUN),
    "table": Example({}, is_exact=True, labels=RUN),
    "texts": Example({"train.epochs": "2"}, is_exact=True, labels=RUN),  # the second epoch is the best of more, too
    "sweep": Example(
        {"train.epochs": "1", "seed": "1", "precision": "float32", **SMALL, **BARE},
        is_exact=False,
        labels=("run it", "comparison"),
    ),
    "search": Example({"train.epochs": "2", "sweep.trials": "5", **BARE}, is_exact=False, labels=SEARCH),
}


def pages() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", (FOLDER / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def lines_of(page: str) -> list[str]:
    """Return the commands of a page, each in one line."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [re.sub(r"\s+", " ", line.partition(" #")[0]).strip() for line in text.splitlines() if line.strip()]


def shortened(words: Sequence[str], sooner: dict[str, str]) -> list[str]:
    """Return a training command with the settings that shorten it."""
    kept = [word for word in words if word.partition("=")[0] not in sooner]
    return [*kept, *(f"{name}={value}" for name, value in sooner.items())]


class Reader:
    """Someone who follows a page in an empty folder.

    Attributes:
        printed: The output of the training commands.
    """

    def __init__(self, folder: Path, servers: ExitStack, sooner: dict[str, str]) -> None:
        self.folder, self.servers, self.sooner = folder, servers, sooner
        self.printed = ""
        self.address = ""

    def type(self, line: str) -> None:
        """Run a command; a server stays until the page ends."""
        if "RUN" in line:
            line = line.replace("RUN", str(last(self.folder / "outputs").run_id)[:8])
        words = shlex.split(line)
        if words[:2] != ["python", "-m"]:
            self._in_a_shell(line)
        elif words[3:4] == ["serve"]:
            self.address = self.servers.enter_context(served(words[4], self.folder))
        else:
            trains = verb_of(words[3:])[0] == "run"
            done = commands.succeed(*(shortened(words[3:], self.sooner) if trains else words[3:]), cwd=self.folder)
            self.printed += done.stdout

    def _in_a_shell(self, line: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        local = re.sub(r"http://127\.0\.0\.1:\d+", self.address, line)
        done = subprocess.run(
            ["bash", "-euc", local], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if local.startswith("curl"):
            assert json.loads(done.stdout)["predictions"], done.stdout


@contextmanager
def served(run: str, folder: Path) -> Iterator[str]:
    """Serve a run as the page does; yield the address, which differs from the page's if its port is in use."""
    path = folder / "served.txt"
    with path.open("w") as out:
        command = commands.start("serve", run, cwd=folder, stdout=out, stderr=out)
        address = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", path.read_text()), 120)
        assert isinstance(address, re.Match), path.read_text()
        wait_for(f"{address[0]}/ping", command)
        yield address[0]
        command.terminate()
        command.wait(30)


def flowers(folder: Path, most: int | None) -> None:
    """Write the photos that the page downloads, or only the first ones, from a local copy for tests."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("tf_flowers", data_dir=shared("tfds", "tf_flowers").parent)
    split = "train" if most is None else f"train[:{most}]"
    names = builder.info.features["label"].names
    for number, photo in enumerate(builder.as_dataset(split, decoders={"image": tfds.decode.SkipDecoding()})):
        path = folder / names[int(photo["label"])] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo["image"].numpy())


def prepare(page: str, folder: Path, is_whole: bool) -> list[str]:
    """Write the scripts of a page and the files that it downloads; return its commands that need no network."""
    for script in blocks(page, "python"):
        (folder / script.partition("\n")[0].removeprefix("# ")).write_text(script.partition("\n")[2])
    lines = lines_of(page)
    if page == "photos":
        weights = shared(*WEIGHTS)
        flowers(folder / "flower_photos", None if is_whole else 150)
        lines = [line.replace("=imagenet", f"={weights}") for line in lines if "https://" not in line]
    return lines


def follow(page: str, folder: Path, store: Path, is_whole: bool) -> Reader:
    """Run the commands of a page, and check their results."""
    example = EXAMPLES[page]
    outputs_in(folder, store)
    with ExitStack() as servers:
        reader = Reader(folder, servers, {} if is_whole else example.sooner)
        for line in prepare(page, folder, is_whole):
            reader.type(line)
    shown = "".join(blocks(page, "text"))
    for label in example.labels:
        assert re.search(rf"^{label}\b", reader.printed, re.MULTILINE), label
        assert re.search(rf"^{label}\b", shown, re.MULTILINE), label
    check_files(page, folder / "outputs")
    if (is_whole or example.is_exact) and "test" in example.labels:
        check_figures(shown, last(folder / "outputs"))
    return reader


def check_files(page: str, outputs: Path) -> None:
    """Check that a run, a sweep or a search has made the files that the page names."""
    text = (FOLDER / f"{page}.md").read_text()
    named = set(re.findall(r"`((?:plots/)?\w+\.(?:png|html|csv|md))`", text))
    assert named, "a page says which files it shows"
    for name in named:
        made = [*outputs.glob(f"runs/*/*/{name}"), *outputs.glob(f"sweeps/*/{name}"), outputs.parent / name]
        assert any(path.is_file() for path in made), name


def check_figures(shown: str, run: Summary) -> None:
    """Check the accuracies and the counts of a page against a run of its command."""
    [accuracy] = re.findall(r"^test +accuracy ([\d.]+)", shown, re.MULTILINE)
    assert run.metrics["test/accuracy"] == pytest.approx(float(accuracy), abs=TOLERANCE)


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_commands_of_a_page_have_the_results_that_it_shows(page: str, tmp_path: Path, migrated_store: Path) -> None:
    """With smaller images, and fewer epochs, jobs and trials."""
    follow(page, tmp_path, migrated_store, is_whole=False)


@pytest.mark.engines
def test_the_photos_reach_the_accuracy_of_their_page(tmp_path: Path, migrated_store: Path) -> None:
    """This runs all epochs. Other pages need fewer epochs for it, or show a sweep, whose jobs would take minutes."""
    follow("photos", tmp_path, migrated_store, is_whole=True)


@pytest.mark.smoke
def test_every_example_is_on_the_index_with_a_picture() -> None:
    index = (FOLDER / "README.md").read_text()
    assert pages() == sorted(EXAMPLES)
    for page in pages():
        text = (FOLDER / f"{page}.md").read_text()
        assert len(text.splitlines()) <= 120, page
        assert f"({page}.md)" in index, page
    shown = re.findall(r"images/gallery/([\w-]+\.(?:png|jpg))", index + "".join(map(_text, pages())))
    assert {path.name for path in PICTURES.iterdir()} == set(shown)
    assert all(path.stat().st_size <= LARGEST for path in PICTURES.iterdir())


def _text(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text()
