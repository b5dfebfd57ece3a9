"""The page of a doctor's result: one HTML file with the table, the place of a gap, and the plots of each cell."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from lockstep.report.doctor_curves import Decode, pack_drawn
from lockstep.report.doctor_folder import DoctorFolder
from lockstep.report.document import Document, write_block
from lockstep.report.log import plain
from lockstep.report.overview import flat
from lockstep.report.plotter import plotter, plotter_styles

_SHARED = ("data.js", "dom.js", "colours.js", "chart.js", "recipe.js")
_OWN = ("findings.js", "grid.js", "map.js", "cell.js", "layers.js", "about.js", "doctor.js")


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
    about, samples = _about(result.report)

    def blocks(file: BinaryIO) -> None:
        for number, columns in enumerate(result.columns(samples)):
            write_block(file, f"drawn-{number}", pack_drawn(columns, tokenizer_decode))

    _document().write(out, {"report": json.dumps(plain(about), allow_nan=False).encode()}, blocks)


def _about(report: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """All that the page shows without its plots, and the names of the columns of each of these."""
    rows, measured, columns = [], [], []
    for cell in report["cells"]:
        settings = {name: cell[name] for name in ("length", "data", "batch_size", "state")}
        settings["method"] = cell["method"]["name"]
        numbers = {}
        for pair in cell.get("pairs", ()):
            numbers[_pair_name(pair["train"], pair["infer"])] = len(measured)
            samples = [
                {"side": side, "block": len(columns) + at, **tokens}
                for at, (side, tokens) in enumerate(pair["drawn"].items())
            ]
            columns += [tokens.pop("columns") for tokens in samples]
            measured.append({**settings, **pair, "clauses": list(pair["clauses"].values()), "drawn": samples})
        rows.append({**settings, "measured": numbers})
    return {
        "model": report["model"]["path"],
        "made": datetime.now().isoformat(" ", "minutes"),
        "verdict": report["verdict"],
        "counts": Counter(one["verdict"] for one in measured),
        "pairs": [_pair_name(*pair) for pair in report["pairs"]],
        "rows": rows,
        "measured": measured,
        "location": report.get("location"),
        "limits": report["recipe"]["limits"],
        "options": dict(flat(report["recipe"])),
        "backends": {name: dict(flat(about)) for name, about in report["backends"].items()},
        **{name: report[name] for name in ("notes", "repeats", "environment")},
    }, columns


def _pair_name(train: str, infer: str) -> str:
    return f"{train} vs {infer}"


def _document() -> Document:
    shared = {name: files("lockstep.report").joinpath("page", name).read_text("utf-8") for name in _SHARED}
    own = {path.name: path.read_text("utf-8") for path in files("lockstep.report").joinpath("doctor").iterdir()}
    scripts = shared | {name: own[name] for name in _OWN}
    page_styles = files("lockstep.report").joinpath("page", "page.css").read_text("utf-8")
    styles = plotter_styles() + page_styles + own["doctor.css"]
    return Document("Lockstep doctor", styles, own["doctor.html"], plotter(), scripts)
