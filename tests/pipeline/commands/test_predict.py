"""`python -m pipeline predict` prints complete lines for programs and terminals, and ends at a signal."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands import predict
from pipeline.console import Console
from pipeline.execute import facts
from pipeline.runs.facts import Facts
from pipeline.runs.lock import output_locked
from pipeline.runs.summary import Summary
from pipeline.system.signals import until
from tests import commands
from tests.pipeline.experiments import write_run
from tests.pipeline.serving.exported import IMAGE, NAMES, write_export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("predict") / "runs" / "day" / "tiny")
    write_export(folder)
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / f"{'long' * 50}:dog:.bmp"
    path.write_bytes(IMAGE)
    return path


def test_a_pipe_gets_whole_lines_of_fields_by_tabs(run: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = image.with_name("line\nbreak.bmp")
    odd.write_bytes(IMAGE)
    assert predict.main([str(run), str(image), str(odd)]) == 0
    classes = ["tab\\tbed", "0.7000", NAMES[0], "0.2000", NAMES[2], "0.1000"]
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows == [[str(image), *classes], [str(odd).replace("\n", "\\n"), *classes]]


def test_a_file_given_twice_is_printed_twice(run: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = image.with_name("table.csv")
    bad.write_bytes(b"none")
    for files, lines, code in (([image] * 2, 2, 0), ([image, bad, image, bad], 2, 1)):
        assert predict.main([str(run), *map(str, files), "--top=1"]) == code
        printed = capsys.readouterr()
        assert printed.out.splitlines() == [f"{image}\ttab\\tbed\t0.7000"] * lines
        assert printed.err.count("cannot be decoded") == len(files) - lines
    assert predict.main([str(run), "missing.png"]) == 1
    assert capsys.readouterr().err == "error: missing.png: No such file or directory\n"
    assert predict.main([str(run), *[str(image)] * 40, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(row["probabilities"]) for row in rows] == [list(NAMES)] * 40


@pytest.mark.parametrize(
    ("words", "message"),
    [(["{run}", "x.parquet", "--output=x.parquet"], "error: --output=x.parquet is also an input file."),
     (["nope", "{image}"], "error: nope matches no run")],
)  # fmt: skip
def test_wrong_arguments_are_refused(
    words: list[str], message: str, run: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([*(word.format(run=run, image=image) for word in words), f"--outputs={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_only_one_process_writes_an_output(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other process is refused before it loads the model. The lock file of a killed process does not count."""
    table = tmp_path / "x.csv"
    table.touch()
    output = tmp_path / "answers.csv"
    words = [str(run), str(table), f"--output={output}"]
    with output_locked(output):
        assert predict.main(words) == 2
        assert capsys.readouterr().err.startswith(f"error: another process is writing {output}. ")
    (tmp_path / ".answers.csv.lock").touch()
    for _ in range(2):
        with output_locked(output):
            pass
        assert list(tmp_path.iterdir()) == [table]
    assert predict.main([str(run), str(table), f"--output={tmp_path}/none/answers.csv"]) == 2
    assert "answers.csv cannot be written (No such file or directory)" in capsys.readouterr().err


def test_folders_are_read_as_training_reads_them(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden files, such as those of macOS, and folders with the name of an image are skipped."""
    for name in ("a.bmp", "inside/b.BMP", "folder.png/c.bmp", "._a.bmp", ".hidden/d.bmp", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(IMAGE)
    assert predict.main([str(run), str(tmp_path), "--top=1"]) == 0
    printed = capsys.readouterr()
    names = [line.partition("\t")[0] for line in printed.out.splitlines()]
    assert names == [str(tmp_path / name) for name in ("a.bmp", "folder.png/c.bmp", "inside/b.BMP")]
    assert printed.err == ""


@pytest.mark.slow
def test_a_closed_pipe_ends_it(run: Path, tmp_path: Path) -> None:
    (tmp_path / "image.bmp").write_bytes(IMAGE)
    words = [str(run), *[str(tmp_path)] * 5_000]
    command = commands.start("predict", *words, stdout=subprocess.PIPE)
    assert command.stdout.readline().count("\t") == 6
    command.stdout.close()
    assert command.wait(commands.HEARD_SECONDS) == 141


@pytest.mark.slow
def test_an_interrupt_while_it_classifies_ends_it_without_a_traceback(run: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(100):
        (images / f"{number}.bmp").write_bytes(IMAGE)
    out, err = tmp_path / "out.txt", tmp_path / "err.txt"
    with out.open("w") as stdout, err.open("w") as stderr:
        words = [str(run), *[str(images)] * 500]
        command = commands.start("predict", *words, stdout=stdout, stderr=stderr)
        until(lambda: out.stat().st_size or command.poll() is not None, 120)
        command.send_signal(signal.SIGINT)
        assert command.wait(commands.HEARD_SECONDS) == 130
    assert err.read_text() == ""
    assert 0 < len(out.read_text().splitlines()) < 50_000


def test_a_finished_run_names_the_commands_that_use_its_model(
    run: Path, image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is named by its folder, or by its id in the default outputs. An unfinished run names no commands."""
    summary = replace(Summary.read(run), exported={"saved_model": "x"}, facts=Facts(unit="images"))
    outputs = run.parents[2]

    def named(summary: Summary) -> list[list[str]]:
        facts.show_next(summary, outputs, Console())
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    for words in (named(summary), named(replace(summary, run_id=None))):
        assert words[0] == ["next", "python", "-m", "pipeline", "predict", str(run), "<images>"]
        assert words[1] == ["python", "-m", "pipeline", "serve", str(run)]
        assert predict.main([words[0][5], str(image)]) == 0
        capsys.readouterr()
    monkeypatch.setattr(facts, "outputs_folder", lambda _: outputs)
    [first, _] = named(summary)
    assert first[5] == "abcdef12"
    assert predict.main([first[5], str(image), f"--outputs={outputs}"]) == 0
    capsys.readouterr()
    assert not named(replace(summary, exported={}))
    assert not named(replace(summary, status="KILLED"))
