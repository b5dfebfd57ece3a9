"""docs/README.md leads to every page, that of decisions to each of them, and no link of the pages
leads nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = sorted(
    page for place in ("*", "benchmarks/**/*", "examples/*") for page in ROOT.glob(f"{place}.md")
)
LINK = re.compile(r"\]\(<?([^)>\s]+)>?\)|(?:src|srcset|href)=\"([^\"]+)\"")
MAX_LINES, MAX_WORDS = 110, 700
"""Of README.md without its folded tree, and words without code, too: about two screens."""


def links(page: Path) -> list[str]:
    """Targets of a page's links within the repository."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    found = (one or other for one, other in LINK.findall(text))
    return [target for target in found if not re.match(r"\w+:", target)]


def slugs(page: Path) -> set[str]:
    """The anchors that a page's headings have on its host."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def find_broken(page: Path) -> list[str]:
    """Links whose file or heading is not there."""
    broken: list[str] = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in slugs(file)):
            broken.append(target)
    return broken


def test_the_index_leads_to_every_page() -> None:
    lists = [INDEX, *(page for page in PAGES if page.name == "README.md")]
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in lists
        for target in links(page)
    }
    assert not [
        str(page.relative_to(ROOT))
        for page in PAGES
        if page != INDEX and page.resolve() not in linked
    ]


@pytest.mark.parametrize("page", [*OTHERS, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_page_have_existing_file_and_heading(page: Path) -> None:
    assert not find_broken(page)


def test_the_readme_leads_to_the_index_and_is_short() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    assert "docs/README.md" in links(readme)
    seen = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert len(seen.splitlines()) <= MAX_LINES
    prose = re.sub(r"^```.*?^```", "", seen, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"\w[\w'./-]*", prose)) <= MAX_WORDS
