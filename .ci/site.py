"""Hooks of MkDocs: pages from outside docs/, and `llms.txt` with the Markdown of each page beside it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FROM_OUTSIDE = {
    "CHANGELOG.md": "changes.md",
    "LOG.md": "measured.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the repository that are not in docs/ → their place in the site."""
LED_TO = {**FROM_OUTSIDE, "README.md": "README.md"}
"""Where links from the site to files outside lead: that to the README to the first page."""
LINK = re.compile(r"(?<=\]\()([^)\s:#]+\.md)(?=[)#])")
LOADS = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"?https?:|<link\b[^>]*\shref=\"?https?:")
"""What a browser would fetch from another host."""
PLAIN: dict[str, str] = {}
"""Markdown of the pages, by their place in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside."""
    for source, place in FROM_OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that leave docs/, or come from outside, into links within the site."""
    inside = page.file.src_uri
    sources = {place: source for source, place in FROM_OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(inside, f"docs/{inside}"))

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[0]))
        place = target.removeprefix("docs/") if target.startswith("docs/") else LED_TO.get(target)
        return posixpath.relpath(place, posixpath.dirname(inside) or ".") if place else match[0]

    PLAIN[inside] = LINK.sub(lead, markdown)
    return PLAIN[inside]


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuses a page that loads something from another host."""
    found = LOADS.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def on_env(env: object, config: MkDocsConfig, files: Files) -> None:
    """Writes each page as Markdown, for readers that are programs."""
    for place, text in PLAIN.items():
        path = Path(config.site_dir, place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keeps the order of the pages for `llms.txt`."""
    config.extra["pages"] = nav.pages


def on_post_build(config: MkDocsConfig) -> None:
    """Writes `llms.txt`: each page of the menu with its title and its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in config.extra["pages"]:
        above = " · ".join(section.title for section in reversed(page.ancestors))
        title = f"{above}: {page.title}" if above else page.title
        lines.append(f"- [{title}]({page.file.src_uri}): {summarize(PLAIN[page.file.src_uri])}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def summarize(markdown: str) -> str:
    """The first sentence of a page, without its links."""
    bodies = re.split(r"\n\s*\n", markdown)
    text = next((body for body in bodies if re.match(r"[\w*`(]", body)), "")
    return re.split(r"(?<=\.)(?<!Dr\.) ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split())), maxsplit=1)[0]
