"""Output that no one reads any more, as in a pipe whose reader has ended, or that a full disk refuses. No torch."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import Any, TextIO

from lockstep.core.errors import RunError


def is_unread(stream: TextIO) -> bool:
    """True if a stream is a pipe whose reader is gone."""
    number = _pipe(stream)
    if number is None:
        return False
    asked = select.poll()
    asked.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def name_failures(stream: TextIO) -> TextIO:
    """Returns a stream to use instead, which names a full disk, and writes what ASCII lacks as codes.

    Streams of tests and notebooks are left alone.
    """
    if stream is not sys.__stdout__ or stream.isatty():
        return stream
    stream.flush()
    file = io.BufferedWriter(_Named(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=bool(stream.line_buffering))


def outlive_full_disk(stream: TextIO) -> TextIO:
    """Returns a stream to use instead of standard error, which drops what a full disk refuses or no one reads.

    A message that cannot be written must not end what it speaks of. Streams of tests and notebooks are left alone.
    """
    if stream is not sys.__stderr__ or stream.isatty():
        return outlive_reader(stream)
    stream.flush()
    file = io.BufferedWriter(_Tolerant(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


def open_closed_streams() -> None:
    """Opens standard streams that were closed for this process, as `>&-` does, to nowhere.

    Otherwise the next file that is opened would get a stream's number, and what libraries print would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def silence(stream: TextIO) -> None:
    """Redirects a pipe to nowhere, including output that is still to be flushed."""
    number = _pipe(stream)
    if number is not None:
        _lead_nowhere(number)


def outlive_reader(stream: TextIO) -> TextIO:
    """Returns a stream to use instead, which drops output without an error once its reader is gone."""
    number = _pipe(stream)
    if number is None:
        return stream
    stream.flush()
    file = io.BufferedWriter(_Tolerant(number, "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


class _Tolerant(io.FileIO):
    """A file that drops what a full disk refuses; a pipe is silent as soon as its reader is gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _lead_nowhere(self.fileno())
            return super().write(data)
        except OSError:
            return len(data)


class _Named(io.FileIO):
    """Standard output that raises one sentence if it fails; later output is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _lead_nowhere(self.fileno())
            raise RunError(f"standard output cannot be written ({error.strerror}); lead it elsewhere") from error


def _pipe(stream: TextIO) -> int | None:
    """The number of the stream's file where that is a pipe or a socket."""
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # a stream of a test or of a notebook has none, and one may be closed
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
