"""The page and the plots: self-contained, escaped, legible in both modes."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from benchmarks.made_runs import MadeRun, make_sweep
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.report import draw_curves, page, write
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


def test_what_users_have_named_is_text(html: str) -> None:
    assert "<script>alert" not in html
    assert "model=<script>alert(1)</script>" in unescape(html)
    assert "Comparison of sweep s & t" in unescape(html)


@pytest.mark.engines
@pytest.mark.parametrize(("scheme", "back"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")])
def test_a_browser_shows_the_page_in_both_modes(scheme: str, back: str, html: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.html").write_text(html)
    with browser() as opened:
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})
        opened.get(f"file://{tmp_path}/comparison.html")
        body = opened.find_element("css selector", "body")
        color = body.value_of_css_property("background-color").replace("rgba", "rgb").replace(", 1)", ")")
        assert color == back
        assert "model=<script>alert(1)</script>" in body.text
        assert "leads on val/best_loss" in body.text
        width, drawn = opened.execute_script(
            "return [document.documentElement.scrollWidth - window.innerWidth,"
            " [...document.querySelectorAll('img')].map(img => img.getBoundingClientRect().width)]"
        )
        assert width <= 0, "the page is wider than its window"
        assert len(drawn) == 1
        assert min(drawn) > 300
        assert [entry for entry in opened.get_log("browser") if "favicon" not in entry["message"]] == []


def test_labels_name_the_setting_and_epochs_are_whole(comparison: Comparison) -> None:
    figure = draw_curves(comparison)
    assert figure is not None
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("(best" in label for label in labels) == sum("baseline" in label for label in labels) == 1
    assert [axes.get_ylabel() for axes in figure.axes] == ["val/loss", "val/accuracy", "train/loss", "train/accuracy"]
    for axes in figure.axes:
        assert len(axes.lines) == len(axes.collections) == len(labels) == 3  # a mean and a band of each row
        assert all(float(tick).is_integer() for tick in axes.xaxis.get_major_locator().tick_values(1, 4))


def test_nothing_to_draw(tmp_path: Path) -> None:
    failed = compare(make_sweep(tmp_path / "s", [MadeRun({"model": "mlp"}, None, status="FAILED")]))
    assert draw_curves(failed) is None
    assert [path.name for path in write(failed, tmp_path)] == [f"comparison.{kind}" for kind in ("md", "csv", "html")]
