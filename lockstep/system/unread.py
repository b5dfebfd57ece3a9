"""Output that no one reads any more, as in a pipe whose reader has ended, or that a full disk
refuses. No torch.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import Any, TextIO


def is_unread(stream: TextIO) -> bool:
    """True if a stream is a pipe whose reader is gone."""
    number = _pipe(stream)
    if number is None:
        return False
    asked = select.poll()
    asked.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def outlive(stream: TextIO) -> TextIO:
    """Returns a stream to use instead of a standard one, which drops what a full disk refuses or no
    one reads.

    A message that cannot be written must not end what it speaks of. Streams of tests and notebooks
    are left alone.
    """
    if stream not in (sys.__stdout__, sys.__stderr__) or stream.isatty():
        return stream
    stream.flush()
    file = io.BufferedWriter(_Tolerant(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


class _Tolerant(io.FileIO):
    """A file that drops what a full disk refuses; a pipe is silent as soon as its reader is
    gone.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            silence(self.fileno())
            return super().write(data)
        except OSError:
            return len(data)


def _pipe(stream: TextIO) -> int | None:
    """The number of the stream's file where that is a pipe or a socket."""
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (
        OSError,
        ValueError,
    ):  # a stream of a test or of a notebook has none, and one may be closed
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return number
    return None


def silence(number: int) -> None:
    """Redirects an open file to nowhere, including output that is still to be flushed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
