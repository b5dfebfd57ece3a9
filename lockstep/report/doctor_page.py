"""The page of a doctor's result: one HTML file with the table, its causes, and the plots of each cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from plotly.offline import get_plotlyjs

from lockstep.report.doctor_curves import Decode, pack_drawn
from lockstep.report.doctor_folder import DoctorFolder
from lockstep.report.document import Document, write_block
from lockstep.report.log import plain
from lockstep.report.overview import flat

_SHARED = ("data.js", "dom.js", "colours.js", "chart.js", "recipe.js")
_OWN = ("findings.js", "grid.js", "map.js", "cell.js", "layers.js", "doctor.js")


def write_doctor_page(folder: Path, tokenizer_decode: Decode | None, out: Path) -> None:
    """Writes the page of a folder that `lockstep doctor` has written.

    Args:
        folder: With the report and its columns.
        tokenizer_decode: Gives the text of token ids; None: the page shows ids.
        out: The file; one that is there is replaced.

    Raises:
        ValueError: If the folder holds no doctor's result, or one that cannot be read.
    """
    result = DoctorFolder(folder)
    about, drawn = _about(result.report)

    def blocks(file: BinaryIO) -> None:
        for number, columns in enumerate(result.columns(drawn)):
            write_block(file, f"drawn-{number}", pack_drawn(columns, tokenizer_decode))

    _document().write(out, {"report": json.dumps(plain(about), allow_nan=False).encode()}, blocks)


def _about(report: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mapping[str, str]]]:
    """All that the page shows without its plots, and the columns of each of these."""
    rows, measured, drawn = [], [], []
    for cell in report["cells"]:
        asked = {name: cell[name] for name in ("length", "data", "method", "batch_size", "note")}
        numbers = {}
        for pair in cell["pairs"]:
            numbers[f"{pair['train']} | {pair['infer']}"] = len(measured)
            blocks = [{"by": by, "block": len(drawn) + at} for at, by in enumerate(pair["columns"])]
            measured.append({**asked, **pair, "drawn": blocks})
            drawn += pair["columns"].values()
        rows.append({**asked, "measured": numbers})
    return {
        **{name: report[name] for name in ("model", "verdict", "sentence", "causes", "probes", "layers")},
        "made": datetime.now().isoformat(" ", "minutes"),
        "pairs": list(dict.fromkeys(pair for row in rows for pair in row["measured"])),
        "rows": rows,
        "measured": measured,
        "limits": report["options"]["limits"],
        "environment": dict(flat(report["environment"])),
        "options": dict(flat(report["options"])),
    }, drawn


def _document() -> Document:
    shared = {name: files("lockstep.report").joinpath("page", name).read_text("utf-8") for name in _SHARED}
    own = {path.name: path.read_text("utf-8") for path in files("lockstep.report").joinpath("doctor").iterdir()}
    scripts = shared | {name: own[name] for name in _OWN}
    styles = files("lockstep.report").joinpath("page", "page.css").read_text("utf-8") + own["doctor.css"]
    return Document("Lockstep doctor", styles, own["doctor.html"], {"plotly": get_plotlyjs()}, scripts)
