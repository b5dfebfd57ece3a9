"""`lockstep report`: runs as one HTML file to look at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from plotly.offline import get_plotlyjs

from lockstep.report.document import Document, write_block
from lockstep.report.log import plain
from lockstep.report.overview import overview
from lockstep.report.samples import pack_samples

_SCRIPTS = (
    "data.js", "dom.js", "colours.js", "state.js", "chart.js", "curves.js", "time.js", "table.js", "tokens.js",
    "samples.js", "heldout.js", "recipe.js", "main.js",
)  # fmt: skip


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Writes a page about one or several runs; a run may be under way, and needs nothing but its recipe.

    Raises:
        ValueError: If a folder holds no run, or a log of it cannot be read.
    """
    runs = [overview(folder) | {"name": name} for folder, name in zip(folders, _names(folders), strict=True)]
    about = {"made": datetime.now().isoformat(" ", "minutes"), "runs": runs}
    blocks = {"report": json.dumps(plain(about), allow_nan=False).encode()}
    with TemporaryFile() as aside:
        for run, folder in enumerate(folders):
            blocks[f"samples-{run}"] = pack_samples(folder, partial(_store, aside, run))
        aside.seek(0)
        _document().write(out, blocks, lambda file: shutil.copyfileobj(aside, file))


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names; their whole paths where two are called the same."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _store(file: BinaryIO, run: int, number: int, block: bytes) -> None:
    write_block(file, f"tokens-{run}-{number}", block)


def _document() -> Document:
    page = files("lockstep.report").joinpath("page")
    text = {entry.name: entry.read_text(encoding="utf-8") for entry in page.iterdir()}
    scripts = {name: text[name] for name in _SCRIPTS}
    return Document("Lockstep report", text["page.css"], text["page.html"], {"plotly": get_plotlyjs()}, scripts)
