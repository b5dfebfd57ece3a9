"""Fills in the tables of docs/coming_from.md, whose first column says what is asked, from lockstep/foreign.

make coming-from
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from lockstep.foreign.conversions import Lookup
from lockstep.foreign.libraries import LIBRARIES
from lockstep.foreign.metrics import METRICS, Metric
from lockstep.foreign.words import Json, Key, Library

PAGE = Path(__file__).parent.parent / "docs/coming_from.md"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
BY_NAME = {library.name: library for library in LIBRARIES}


def fill(page: str) -> str:
    """The page, with the cells behind each first one written anew, of keys and of metrics."""
    start, middle, end = (page.index(f"## {heading}") for heading in ("Keys of a recipe", "Metrics", "Different on"))
    keys = TABLE.sub(lambda match: fill_table(match[0], cell), page[start:middle])
    groups = re.split(r"(?<=^### )(.*)\n", page[middle:end], flags=re.MULTILINE)
    for at in range(1, len(groups), 2):
        cells = partial(metrics_cell, METRICS[groups[at]])
        groups[at + 1] = "\n" + TABLE.sub(lambda match, cells=cells: fill_table(match[0], cells), groups[at + 1])
    return page[:start] + keys + "".join(groups) + page[end:]


def fill_table(table: str, cell: Callable[[str, str], str]) -> str:
    """A table whose columns are named after libraries; `cell` is of a library and a first cell."""
    head, rule, *rows = table.splitlines()
    libraries = [name.strip() for name in head.strip("|").split("|")[1:]]
    labels = [row.strip("|").split(" |")[0].strip() for row in rows]
    written = (
        f"| {label} |" + "".join(f" {text} |" if text else " |" for text in (cell(name, label) for name in libraries))
        for label in labels
    )
    return "\n".join([head, rule, *written]) + "\n"


def metrics_cell(metrics: Mapping[str, tuple[Metric, ...]], name: str, label: str) -> str:
    """What a library calls metrics of ours."""
    ours = re.findall(r"`([^`]+)`", label)
    return join([write_metric(metric) for metric in metrics[name] if metric.ours in ours])


def write_metric(metric: Metric) -> str:
    """A metric of theirs, with who logs it and in what it differs."""
    return f"{f'{metric.of}: ' if metric.of else ''}`{metric.theirs}`{f', {metric.note}' if metric.note else ''}"


def join(found: list[str]) -> str:
    """The texts of a cell, each once."""
    has_notes = any(", " in text or ": " in text for text in found)
    return ("; " if has_notes and len(set(found)) > 1 else ", ").join(dict.fromkeys(found))


def cell(name: str, label: str) -> str:
    """What a library calls an option, or the value of an option, of ours."""
    library = BY_NAME[name]
    named = re.findall(r"`([^`]+)`", label)[0]
    key, _, value = named.partition("=")
    return join([text for row in library.rows for text in texts(library, row, key, value) if text])


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
