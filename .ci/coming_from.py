"""Fills in the tables of keys in docs/coming_from.md, whose first column says what is asked, from lockstep/foreign.

make coming-from
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from lockstep.foreign.conversions import Lookup
from lockstep.foreign.libraries import LIBRARIES
from lockstep.foreign.words import Json, Key, Library

PAGE = Path(__file__).parent.parent / "docs/coming_from.md"
BY_NAME = {library.name: library for library in LIBRARIES}


def fill(page: str) -> str:
    """The page, with the cells behind each first one written anew, from its keys to its metrics."""
    start, end = page.index("## Keys of a recipe"), page.index("## Metrics")
    tables = re.sub(r"(?:^\|.*\n)+", lambda match: fill_table(match[0]), page[start:end], flags=re.MULTILINE)
    return page[:start] + tables + page[end:]


def fill_table(table: str) -> str:
    """A table whose columns are named after libraries."""
    head, rule, *rows = table.splitlines()
    libraries = [BY_NAME[name.strip()] for name in head.strip("|").split("|")[1:]]
    labels = [row.strip("|").split(" |")[0].strip() for row in rows]
    written = (
        f"| {label} |"
        + "".join(f" {text} |" if text else " |" for text in (cell(library, label) for library in libraries))
        for label in labels
    )
    return "\n".join([head, rule, *written]) + "\n"


def cell(library: Library, label: str) -> str:
    """What a library calls an option, or the value of an option, of ours."""
    named = re.findall(r"`([^`]+)`", label)[0]
    key, _, value = named.partition("=")
    found = [text for row in library.rows for text in texts(library, row, key, value) if text]
    has_notes = any(", " in text or ": " in text for text in found)
    return ("; " if has_notes and len(set(found)) > 1 else ", ").join(dict.fromkeys(found))


def texts(library: Library, row: Key, key: str, value: str) -> Iterator[str]:
    """What a row says of it."""
    if row.page == "-" or not {key, f"{key}={value}"} & set(row.ours):
        return
    is_written = bool(row.page) and not row.page.startswith("=")
    if value and isinstance(row.convert, Lookup) and not is_written:
        name = row.page.removeprefix("=") if row.page else shorten(library, row.theirs)
        for theirs, ours in row.convert.values.items():
            if ours == value:
                yield f"`{name}={spell(theirs)}`" if name else f"`{spell(theirs)}`"
    elif value and isinstance(row.convert, Lookup):
        yield row.page if value in row.convert.values.values() else ""
    elif is_written:
        yield row.page
    elif row.theirs and not value and not row.page:
        yield f"`{shorten(library, row.theirs)}`{f', {row.note}' if row.note else ''}"


def shorten(library: Library, key: str) -> str:
    """A key without what the page leaves off."""
    return key.removeprefix(library.prefix)


def spell(value: Json) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    out.write_text(fill(PAGE.read_text()))
