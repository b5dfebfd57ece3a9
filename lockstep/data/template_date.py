"""The date in chat templates: the date of the run's first start, so that a resumed run agrees.

It is kept in the run's folder.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lockstep.core.errors import InputError
from lockstep.system.printable import print_note
from lockstep.system.whole_files import write_whole

FILE = "template_date.txt"
"""Name of the file in a run's folder; missing if no template writes a date."""

_READER = "strftime_now"


_files: list[Path | None] = [None]
"""Date files of the runs in progress, the innermost last; a run may train a warm start first.

None means no run.
"""
_dates: dict[Path | None, datetime.date] = {}


@contextmanager
def keep_date(folder: Path) -> Iterator[None]:
    """Makes templates in a block write the date that a run's folder keeps."""
    _files.append(folder / FILE)
    try:
        yield
    finally:
        _dates.pop(_files.pop(), None)


def strftime_now(layout: str) -> str:
    """Formats the date for a template, which cannot read the time of day."""
    return datetime.datetime.combine(_read_date(), datetime.time()).strftime(layout)


def find_date(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Returns the date if the tokenizer's chat template may write it."""
    if _READER in str(tokenizer.chat_template or ""):
        return str(_read_date())
    return None


def _read_date() -> datetime.date:
    """The date of the run in progress, chosen on first use."""
    file = _files[-1]
    if file in _dates:
        return _dates[file]
    if file is not None and file.is_file():
        try:
            date = datetime.date.fromisoformat(file.read_text(encoding="utf-8").strip())
        except ValueError as error:
            raise InputError(
                f"{file} has no valid date ({error}); write one as 2026-01-31"
            ) from error
    else:
        date = datetime.date.today()
        kept = f", saved in {file} for resuming" if file is not None else ""
        print_note(f"the chat template includes the date; it is {date}{kept}")
        if file is not None:
            write_whole(file, [f"{date}\n".encode()])
    _dates[file] = date
    return date
