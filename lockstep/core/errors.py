"""Errors that users see as one sentence.

Any other exception is a crash and shows its traceback.
"""

from __future__ import annotations

from typing import ClassVar

from lockstep.core import exit_codes


class LockstepError(Exception):
    """Base of errors for users; the message is one sentence: what is wrong, where, and the fix.

    Attributes:
        exit_code: Exit code of the command.
    """

    exit_code: ClassVar[int] = exit_codes.CRASH


class InputError(LockstepError, ValueError):
    """A recipe, a file, a model or an option cannot be used as given."""

    exit_code = exit_codes.INPUT


class RunError(LockstepError, RuntimeError):
    """A run cannot continue: a worker, an engine or a disk failed, or numbers are not finite."""


class NothingTrainedError(LockstepError):
    """A run finished without any step that learned something."""

    exit_code = exit_codes.INCONCLUSIVE


class BrokenPromiseError(LockstepError, RuntimeError):
    """Sampler and learner are not in lockstep."""

    exit_code = exit_codes.BROKEN


def install_command(extra: str) -> str:
    """Returns the command that installs an extra from a clone: Lockstep is not on PyPI."""
    return f"in your clone of Lockstep: pip install -c constraints.txt -e '.[{extra}]'"


_LONGEST_QUOTED = 300


def shorten_text(text: str) -> str:
    """Shortens a long text to its beginning, so that it fits into a sentence."""
    if len(text) <= _LONGEST_QUOTED:
        return text
    return f"{text[:_LONGEST_QUOTED]}…"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; messages of libraries can be pages long."""
    return str(error).strip().split("\n", 1)[0].rstrip(".:") or type(error).__name__
