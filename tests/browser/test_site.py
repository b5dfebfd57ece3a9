"""The site of docs/ opens from its folder: it asks for nothing outside, complains of nothing, and
its search finds.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.full, pytest.mark.needs("browser")]


@pytest.fixture(scope="module")
def site() -> Path:
    subprocess.run(["make", "docs"], cwd=ROOT, check=True, capture_output=True)
    return ROOT / "build/site"


def test_notebook_page_shows_pictures_that_cells_returned(site: Path) -> None:
    page = (site / "notebooks/first_run.html").read_text(encoding="utf-8")
    assert re.search(
        r'<div class="output"><svg .*<polyline .*</svg><details>.*AGREE', page, re.DOTALL
    )


@pytest.mark.parametrize(
    "name", ["index.html", "coming_from.html", "reference/lockstep.html", "notebooks/own_loop.html"]
)
def test_docs_pages_load_nothing_external_and_search_finds_results(
    site: Path, name: str, browser: Browser
) -> None:
    page, complaints, asked = browser.new_page(), list[str](), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / name).as_uri())
    page.click(".md-search__input")
    page.keyboard.type("bad_rows")
    page.wait_for_selector(
        ".md-search-result__item a[href*='messages.html']", state="attached", timeout=60_000
    )
    page.close()
    assert complaints == []
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
