"""Output without a reader, as in a closed pipe, or on a full disk. Imports no torch."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import Any, TextIO


def is_unread(stream: TextIO) -> bool:
    """True if a stream is a pipe whose reader is gone."""
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # a notebook's stream has no number; one may be closed
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    asked = select.poll()
    asked.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def wrap_stream(stream: TextIO) -> TextIO:
    """Returns a stand-in for a standard stream that drops output that cannot be written.

    A message that cannot be written must not end the work that it describes. Streams of tests and
    notebooks are left unchanged.
    """
    if stream not in (sys.__stdout__, sys.__stderr__) or stream.isatty():
        return stream
    stream.flush()
    file = io.BufferedWriter(_TolerantFile(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


class _TolerantFile(io.FileIO):
    """A file that drops writes to a full disk; a pipe goes silent when its reader is gone."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            redirect_to_null(self.fileno())
            return super().write(data)
        except OSError:
            return len(data)


def redirect_to_null(number: int) -> None:
    """Redirects a file descriptor to the null device, including output still to be flushed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
