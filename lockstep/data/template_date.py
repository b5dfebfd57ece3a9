"""The date that chat templates write: that of a run's first start, kept in its folder, so that a resumed run agrees."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lockstep.data.notes import note
from lockstep.errors import InputError
from lockstep.whole_files import write_whole

FILE = "template_date.txt"
"""Name of the file in a run's folder; there is none if no template writes a date."""

_READER = "strftime_now"


class _Day:
    """The date of this process, or of the run that it carries out."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._date: datetime.date | None = None

    def read(self) -> datetime.date:
        """The date, chosen when it is first read."""
        if self._date is None:
            self._date = _read(self._file) or self._choose()
        return self._date

    def _choose(self) -> datetime.date:
        today = datetime.date.today()
        kept = f", kept in {self._file} for when this is resumed" if self._file is not None else ""
        note(f"the chat template writes the date; it is {today}{kept}")
        if self._file is not None:
            write_whole(self._file, [f"{today}\n".encode()])
        return today


_days = [_Day(None)]
"""The innermost is that of the run in progress; a run may train another one first."""


@contextmanager
def keep_date(folder: Path) -> Iterator[None]:
    """Has the templates in a block write the date that a run's folder keeps."""
    _days.append(_Day(folder / FILE))
    try:
        yield
    finally:
        _days.pop()


def strftime_now(layout: str) -> str:
    """Writes the date for a template, which cannot read the time of day."""
    return datetime.datetime.combine(_days[-1].read(), datetime.time()).strftime(layout)


def find_date(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Returns the date, if the tokenizer's chat template may write it."""
    return str(_days[-1].read()) if _READER in str(tokenizer.chat_template or "") else None


def _read(file: Path | None) -> datetime.date | None:
    if file is None or not file.is_file():
        return None
    try:
        return datetime.date.fromisoformat(file.read_text(encoding="utf-8").strip())
    except ValueError as error:
        raise InputError(f"{file} holds no date ({error}); write one as 2026-01-31") from error
