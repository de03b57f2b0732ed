"""The page and the plots are self-contained, escaped, and readable in both color schemes and at any width."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.comparison.answer import choice
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.curves import COLORS, DASHES, GAP, draw_curves
from pipeline.comparison.report import breakable, page, pieces, write
from pipeline.sweep.index import compare
from tests.servers import browser


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    random = np.random.default_rng(0)
    runs = [
        MadeRun({"model": name, "seed": str(seed)}, random.random(200) < 0.9, speed=100.0 + place, epochs=4)
        for place, name in enumerate(("<script>alert(1)</script>", "a$b$|c", "mlp"))
        for seed in (1, 2)
    ]
    return compare(make_sweep(tmp_path_factory.mktemp("page") / "s & t", runs))


@pytest.fixture(scope="module")
def html(comparison: Comparison) -> str:
    return page(comparison)


def test_the_page_loads_nothing(html: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert len(links) == 1
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert "default-src 'none'" in html
    assert "://" not in html


def test_names_from_users_are_escaped(html: str) -> None:
    assert "<script>alert" not in html
    assert "model=<script>alert(1)</script>" in unescape(html)
    assert "Comparison of sweep s & t" in unescape(html)


@pytest.mark.engines
@pytest.mark.parametrize(("scheme", "back"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")])
def test_a_browser_shows_the_page_in_both_modes(
    scheme: str, back: str, html: str, comparison: Comparison, tmp_path: Path
) -> None:
    (tmp_path / "comparison.html").write_text(html)
    with browser() as opened:
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})
        opened.get(f"file://{tmp_path}/comparison.html")
        body = opened.find_element("css selector", "body")
        color = body.value_of_css_property("background-color").replace("rgba", "rgb").replace(", 1)", ")")
        assert color == back
        assert "model=<script>alert(1)</script>" in body.text
        assert choice(comparison) in body.text
        width, drawn = opened.execute_script(
            "return [document.documentElement.scrollWidth - window.innerWidth,"
            " [...document.querySelectorAll('img')].map(img => img.getBoundingClientRect().width)]"
        )
        assert width <= 0, "the page is wider than its window"
        assert len(drawn) == 1
        assert min(drawn) > 300
        assert [entry for entry in opened.get_log("browser") if "favicon" not in entry["message"]] == []


def test_curves_have_labels_and_epochs_are_whole(comparison: Comparison) -> None:
    figure = draw_curves(comparison)
    assert figure is not None
    titles = ["validation loss", "validation accuracy", "training loss", "training accuracy"]
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes in figure.axes:
        assert len(axes.lines) == len(axes.collections) == 3  # a mean and a band of each row
        assert {text.get_text() for text in axes.texts} == {"A", "B", "C"}
        assert all(float(tick).is_integer() for tick in axes.xaxis.get_major_locator().tick_values(1, 4))


def test_nothing_to_draw(tmp_path: Path) -> None:
    failed = compare(make_sweep(tmp_path / "s", [MadeRun({"model": "mlp"}, None, status="FAILED")]))
    assert draw_curves(failed) is None
    assert [path.name for path in write(failed, tmp_path)] == [f"comparison.{kind}" for kind in ("md", "csv", "html")]


WIDE = """return [document.scrollingElement, ...document.querySelectorAll(".scroll, pre, p, ul")]
    .filter(box => box.scrollWidth > box.clientWidth).map(box => box.outerHTML.slice(0, 80))"""


@pytest.mark.engines
@pytest.mark.parametrize("settings", [2, 3, 5])
def test_nothing_scrolls_sideways_at_1280_pixels(settings: int, tmp_path: Path) -> None:
    """With eight combinations, long names and values, and many metrics, including custom ones."""
    random = np.random.default_rng(0)
    names = [f"model.network.a_setting_with_a_long_name_{number}" for number in range(settings)]
    more = {f"my/own_metric_with_a_long_name_{number}": random.normal() * 1e5 for number in range(9)}
    runs = [
        MadeRun(
            {**dict.fromkeys(names, f"/a/folder/with-a-long-name/and_{place}"), "seed": str(seed)},
            random.random(200) < 0.9, speed=1e6 * random.random(), val_loss=0.5 + 0.01 * random.random(),
            metrics=more, epochs=4,
        )
        for place in range(8) for seed in (1, 2)
    ]  # fmt: skip
    folder = make_sweep(tmp_path / "s", runs)
    with browser() as opened:
        opened.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False},
        )
        for columns in ([], [*more, "test/accuracy"]):
            (tmp_path / "comparison.html").write_text(page(compare(folder, columns=columns)))
            opened.get(f"file://{tmp_path}/comparison.html")
            assert opened.execute_script("return document.querySelectorAll('tbody tr').length") >= 8
            assert opened.execute_script(WIDE) == []


def test_eight_curves_are_distinct_without_colors(tmp_path: Path) -> None:
    """Line styles and a letter at each end distinguish them; letters do not overlap, and the winner is the thickest."""
    runs = [MadeRun({"model": f"m{place}", "seed": seed}, None, val_loss=0.5 + place / 100)
            for place in range(9) for seed in "12"]  # fmt: skip
    comparison = compare(make_sweep(tmp_path / "s", runs))
    figure = draw_curves(comparison)
    assert figure is not None
    assert len(set(DASHES)) == len(set(COLORS)) == 8
    for axes in figure.axes:
        assert len(axes.lines) == 8
        widths = [line.get_linewidth() for line in axes.lines]
        assert widths.count(max(widths)) == 1
        heights = sorted(text.get_position()[1] for text in axes.texts)
        assert [text.get_text() for text in sorted(axes.texts, key=lambda text: text.get_text())] == list("ABCDEFGH")
        assert min(np.diff(heights)) >= GAP - 1e-9
        assert 0 <= heights[0] < heights[-1] <= 1, "within the panel"


def test_the_answer_marks_its_settings(comparison: Comparison) -> None:
    """It marks whole names only: `model=a` is not marked in `model=ab`."""
    text = "model=ab wins: 0.1 lower than model=a."
    assert pieces(text, ["model=a", "model=ab"]) == [
        (True, "model=ab"),
        (False, " wins: 0.1 lower than "),
        (True, "model=a"),
        (False, "."),
    ]


SIGHT = (np.eye(3), [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
         [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]])  # fmt: skip
"""Transforms of linear colors: normal sight, deuteranopia, protanopia (Machado, Oliveira and Fernandes, 2009)."""


def test_the_colors_are_distinct_with_color_blindness_and_on_both_backgrounds() -> None:
    """The distance is measured in CIELAB, where a difference of 2 is just visible."""
    codes = np.array([[int(code[place : place + 2], 16) for place in (1, 3, 5)] for code in (*COLORS, "#0d1117")]) / 255
    linear = np.where(codes <= 0.04045, codes / 12.92, ((codes + 0.055) / 1.055) ** 2.4)
    *light, dark = linear @ [0.2126, 0.7152, 0.0722]
    assert all(min(1.05 / (one + 0.05), (one + 0.05) / (dark + 0.05)) > 3 for one in light)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    for sight in SIGHT:
        seen = np.clip(linear[:-1] @ np.transpose(sight), 0, 1)
        x, y, z = np.cbrt(seen @ to_xyz.T / [0.9505, 1, 1.089]).T
        lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], axis=1)
        apart = np.linalg.norm(lab[:, None] - lab, axis=-1)[np.triu_indices(len(COLORS), 1)]
        assert apart.min() > 18


@pytest.mark.parametrize(
    ("name", "parts"),
    [("test accuracy vs baseline", ["test", " ", "accuracy", " ", "vs", " ", "baseline"]),
     ("optimizer.learning_rate", ["optimizer.", "learning_rate"]),
     ("my/own_metric_with_a_long_name", ["my/", "own_", "metric_", "with_", "a_", "long_", "name"])],
)  # fmt: skip
def test_a_name_breaks_between_its_parts(name: str, parts: list[str]) -> None:
    assert breakable(name) == parts
