"""The site that `make docs` builds: it needs no network, its search works, and its pages fit the screen."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.servers import browser

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, which must not print a warning; return its folder."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as driver:
        yield driver


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(https?:|//)"
        assert not re.search(loads, page.read_text()), page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback within the block, and yield its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_search_finds_pages_from_files_and_from_a_server(scheme: str, site: Path, opened: Any) -> None:
    """Search works on a page in a folder as well as on the home page."""
    with served(site) as server:
        address = site.as_uri() if scheme == "file" else server
        for page in ("index.html", "how-to/tables.html"):
            opened.get(f"{address}/{page}")
            opened.execute_script("document.querySelector('#__search').click()")
            opened.find_element("css selector", "input.md-search__input").send_keys("checkpoint")
            links = _wait(opened, "return [...document.querySelectorAll('a.md-search-result__link')].map(a => a.href)")
            assert any(link.startswith(f"{address}/how-to/resume.html") for link in links), links
            loaded = opened.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
            assert [name for name in loaded if not name.startswith((address, "data:"))] == []


def _wait(opened: Any, script: str) -> Any:
    """Return what a script returns, as soon as it is not empty."""
    deadline = time.monotonic() + 30
    while not (result := opened.execute_script(script)):
        assert time.monotonic() < deadline, opened.get_log("browser")
        time.sleep(0.1)
    return result


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways_or_breaks_a_word_of_code(width: int, site: Path, opened: Any) -> None:
    """Tables and blocks of code scroll inside their own boxes, and each column has a name."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wrong = {}
    for page in sorted(site.rglob("*.html")):
        opened.get(page.as_uri())
        found = opened.execute_script(WRONG)
        if any(found.values()):
            wrong[str(page.relative_to(site))] = found
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wrong == {}


WRONG = r"""
const content = document.querySelector(".md-content") || document.body;
const broken = [...content.querySelectorAll("code")].filter(code => !code.closest("pre")).flatMap(code => {
  if (code.getClientRects().length < 2) return [];
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), words = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const word of node.data.matchAll(/(?:(?<=^|\s)--?)?\w+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(rect => Math.round(rect.top))).size > 1) words.push(word[0]);
    }
  }
  return words.map(word => `${word} in ${code.textContent}`);
});
return {
  sideways: Math.max(0, document.documentElement.scrollWidth - window.innerWidth),
  broken,
  nameless: [...content.querySelectorAll("thead th")].filter(cell => !cell.textContent.trim()).length,
};
"""
