"""A self-contained HTML file with its styles, scripts, libraries and data, and no network use.

A page shows texts of models, which must never run as code. Data is embedded as compressed
blocks in base64, whose alphabet has neither `<` nor a quote, and scripts insert text as text. A
Content-Security-Policy adds protection: a script runs only if its hash is listed, and nothing is
loaded from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import BinaryIO

_SCRIPTS = (
    "data.js", "dom.js", "colours.js", "state.js", "chart.js", "curves.js", "time.js", "table.js",
    "tokens.js",
    "samples.js", "heldout.js", "recipe.js", "sweep.js", "main.js",
)  # fmt: skip
"""Our scripts in order. They share one global scope, like all plain scripts of a page."""


def write_document(file: BinaryIO, blocks: Mapping[str, bytes], live: bool = False) -> None:
    """Writes the page; more blocks may follow, so that it is usable before they are read.

    Args:
        file: The output.
        blocks: Data by name, available when the scripts start.
        live: Whether the page polls its server for a newer version.
    """
    page = files("lockstep.report").joinpath("page")
    text = {entry.name: entry.read_text("utf-8") for entry in page.iterdir() if entry.is_file()}
    # uPlot as published, with its license: every page contains both
    plotter = {entry.name: entry.read_text("utf-8") for entry in page.joinpath("vendor").iterdir()}
    styles = (
        f"/* uPlot {plotter['LICENSE'].strip()} */\n{plotter['uPlot.min.css']}\n{text['page.css']}"
    )
    library = plotter["uPlot.iife.min.js"]
    names: list[str] = [*_SCRIPTS]
    if live:
        names.append("live.js")
    scripts = [f"\n{text[name]}//# sourceURL={name}\n" for name in names]
    hashes: list[str] = []
    for source in [*scripts, library]:
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    runnable = " ".join(hashes)
    # Plotting libraries put styles into attributes; styles cannot load anything either.
    policy = (
        f"default-src 'none'; script-src {runnable}; style-src 'unsafe-inline'; base-uri "
        "'none'; form-action 'none'"
    )
    if live:
        policy += "; connect-src 'self'"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>Lockstep "
        f"report</title>\n<style>\n{styles}</style>\n</head>\n<body>\n{text['page.html']}"
    )
    file.write(head.encode())
    write_block(file, "uplot", library.encode())  # compressed until `run_library` of `page/data.js`
    for name, content in blocks.items():
        write_block(file, name, content)
    for source in scripts:
        file.write(f"<script>{source}</script>\n".encode())


def write_block(file: BinaryIO, name: str, content: bytes) -> None:
    """Writes a data block; `inflated(name)` in `page/data.js` returns its bytes."""
    file.write(f'<script type="application/gzip" id="{name}">'.encode())
    file.write(base64.b64encode(gzip.compress(content, 6, mtime=0)))
    file.write(b"</script>\n")
