"""Hooks of MkDocs: pages from outside docs/, the reference, notebooks, and `llms.txt` with each
page's Markdown.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe
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
    "tests/commands/messages.md": "messages.md",
}
"""Pages of the repository that are not in docs/ → their place in the site."""
CODE = {
    "examples/custom_algorithm/reinforce.py": "examples/custom_algorithm.md",
    "examples/rl_loop.py": "examples/rl_loop.md",
}
"""Files of code that have a page → its place in the site."""
LED_TO = {**FROM_OUTSIDE, **CODE, "README.md": "README.md"}
"""Where links from the site to files outside lead: that to the README to the first page."""
LINK = re.compile(r"\[([^]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
"""A link within the repository: its words, file and heading."""
LOADS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"?https?:|<link\b[^>]*\shref=\"?https?:"
)
"""What a browser would fetch from another host."""
PAGE = r"docs/[\w/.-]+\.md|LOG\.md"
NAMED = re.compile(rf"`[^`\n]+`|(?<![\[/\w])(?<!\]\()(?:{PAGE})(?![\w\]])")
"""Any code, and a page that is named as a word and is no link yet."""
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
BOOSTS = (
    (re.compile(r"adr/|(measured|changes|benchmarks|contributing|releasing)\.md"), 0.2),
    (re.compile(r"reference/lockstep|examples/|coming_from\.md"), 0.3),
    (re.compile(r"reference/|(messages|formulas|glossary|models|papers)\.md"), 0.5),
    (re.compile(r"notebooks/"), 0.8),
)
"""Pages that hold every word of the field, and what a search counts them for; guides and algorithms
count 1.
"""
LOADER = griffe.GriffeLoader(search_paths=[ROOT])
PLAIN: dict[str, str] = {}
"""Markdown of the pages, by their place in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside, those of the reference, and one of each notebook."""
    pages = {
        place: (ROOT / source).read_text(encoding="utf-8") for source, place in FROM_OUTSIDE.items()
    }
    for source, place in CODE.items():
        pages[place] = (
            f"# {source}\n\n```python\n{(ROOT / source).read_text(encoding='utf-8')}```\n"
        )
    for path in sorted((ROOT / "build/reference").glob("*.md")):
        pages[f"reference/{path.name}"] = path.read_text(encoding="utf-8")
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = "\n\n".join(read_notebook(path)) + "\n"
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def read_notebook(path: Path) -> Iterator[str]:
    """The cells of a notebook as Markdown, with what they printed when it was run."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        if number == 0:
            yield (
                f"([This page as a notebook]({path.name}), with what it printed when it was "
                "last run.)"
            )
        outputs = cell.get("outputs", ())
        printed = "".join("".join(output.get("text", ())) for output in outputs)
        if printed:
            yield f"```text\n{printed.rstrip()}\n```"
        for output in outputs:
            shown = "".join(output.get("data", {}).get("text/html", ()))
            if shown:
                yield f'<div class="output">{shown}</div>'


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that leave docs/, or come from outside, into links within the site."""
    inside = page.file.src_uri
    sources = {place: source for source, place in FROM_OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(inside, f"docs/{inside}"))
    boost = next((boost for pages, boost in BOOSTS if pages.match(inside)), None)
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    markdown = link_named_pages(markdown, folder)
    PLAIN[inside] = LINK.sub(lambda link: lead(link, folder, inside), markdown)
    return PLAIN[inside]


def link_named_pages(markdown: str, folder: str) -> str:
    """Makes links of pages that are named, outside of blocks of code; `folder` is that of the
    page.
    """
    return "".join(
        piece if number % 2 else NAMED.sub(lambda name: link_to(name, folder), piece)
        for number, piece in enumerate(FENCED.split(markdown))
    )


def link_to(name: re.Match[str], folder: str) -> str:
    """A link to the page that is named, as a word or as all of some code, if it is there and no
    link yet.
    """
    page, is_linked = name[0].strip("`"), name.string[: name.start()].endswith("[")
    is_page = re.fullmatch(PAGE, page) is not None and (ROOT / page).is_file()
    return (
        f"[{name[0]}]({posixpath.relpath(page, folder or '.')})"
        if is_page and not is_linked
        else name[0]
    )


def lead(link: re.Match[str], folder: str, inside: str) -> str:
    """A link of a page, as the site has it: a file that is not in the site is named."""
    words, file, heading = link.groups()
    target = posixpath.normpath(posixpath.join(folder, file))
    place = target.removeprefix("docs/") if target.startswith("docs/") else LED_TO.get(target)
    if place is None:
        return f"{words} (`{target}`)" if (ROOT / target).is_file() else link[0]
    if place.endswith(".ipynb") and not inside.startswith("notebooks/"):
        place = place.removesuffix(".ipynb") + ".md"
    return f"[{words}]({posixpath.relpath(place, posixpath.dirname(inside) or '.')}{heading or ''})"


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
        path.write_text(
            DIRECTIVE.sub(lambda found: describe_object(found[1]), text), encoding="utf-8"
        )


@cache
def read_package(name: str) -> griffe.Object | griffe.Alias:
    """The code of a package, which is not run."""
    return LOADER.load(name)


def describe_object(name: str) -> str:
    """A class or function of a package by its signature and docstring, with the public methods of a
    class.
    """
    package, _, path = name.partition(".")
    return "\n\n".join(describe_members(read_package(package)[path], name))


def describe_members(found: griffe.Object | griffe.Alias, name: str) -> Iterator[str]:
    """Paragraphs on an object, and on its public members where it is a class."""
    yield f"### `{name}`"
    if found.is_class or found.is_function:
        yield f"```python\n{found.signature()}\n```"
    if found.docstring is not None:
        yield found.docstring.value
    if found.is_class:
        for member in found.members.values():
            if not member.name.startswith("_") and member.docstring is not None:
                yield from describe_members(member, f"{name.rpartition('.')[2]}.{member.name}")


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
    return re.split(
        r"(?<=\.)(?<!Dr\.) ",
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split())),
        maxsplit=1,
    )[0]
