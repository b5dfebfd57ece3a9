"""The page of a result, with tokens as text where the model still lies where it was."""

from __future__ import annotations

from pathlib import Path

from lockstep.models.tokenizer import has_tokenizer, load_tokenizer
from lockstep.report.doctor_curves import Decode
from lockstep.report.doctor_folder import DoctorFolder
from lockstep.report.doctor_page import write_doctor_page

PAGE = "report.html"


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Writes the page of what `lockstep doctor` left in a folder.

    Args:
        out: The file; None: `report.html` in the folder.

    Returns:
        The file.
    """
    model = DoctorFolder(folder).report["model"]["path"]
    path = out or folder / PAGE
    write_doctor_page(folder, _decoder_of(model) if has_tokenizer(model) else None, path)
    return path


def _decoder_of(model: str) -> Decode:
    tokenizer = load_tokenizer(model)
    return lambda tokens: str(tokenizer.decode(list(tokens)))
