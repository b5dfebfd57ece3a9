"""Checks math answers with math-verify in a child process with a hard time limit.

math-verify does not finish for some short answers: 9^9^9^9, a large factorial, a sum to a high
power. Its own time limits use signals, which work only in the main thread and do not interrupt a
long integer operation. So it runs in a child process under a kernel limit; a killed child means no
verdict. The limit is on CPU time, so that verdicts do not depend on the machine's load.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from decimal import Decimal

from lockstep.core.errors import InputError, RunError
from lockstep.helpers.process import (
    AnswerFunction,
    ChildDied,
    ChildError,
    ChildHangs,
    HelperProcess,
)
from lockstep.system.fault_policy import RetryCounter
from lockstep.system.printable import print_note

_CPU_LIMIT_S = 3.0
_CLOCK_LIMIT_S = 600.0  # far above the CPU limit, for a child that neither computes nor answers
_NUMBER = re.compile(r"-?\d{1,200}(?:\.\d{1,200})?")
_CACHE_SIZE = 1 << 16
_CHILD = HelperProcess(__name__)


def verify_equal(right: str, found: str) -> bool | None:
    """Returns true if two LaTeX answers are equal; repeated questions use a cache.

    Returns:
        None if the child did not finish within its limit.

    Raises:
        InputError: If math-verify cannot be started.
        RunError: If its process ends for any reason except the limit.
    """
    if _NUMBER.fullmatch(right) and _NUMBER.fullmatch(found):
        return Decimal(right) == Decimal(found)
    return _ask_cached(right, found)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _ask_cached(right: str, found: str) -> bool | None:
    return ask_verifier(_CHILD, right, found)


def ask_verifier(child: HelperProcess, right: str, found: str) -> bool | None:
    """Asks a child process that runs this module; None if it reached its CPU limit."""
    attempts = RetryCounter("helper", print_note)
    while True:
        try:
            child.start()
            with child.ask_streaming([right, found]) as reply:
                return reply(_CLOCK_LIMIT_S)
        except ChildDied as death:
            if death.signal == signal.SIGPROF:
                return None
            died = f"the math-verify process died on {found!r}: {death}"
            if not (death.may_pass and attempts.wait_for_retry(died)):
                raise RunError(f"{died}; the same command resumes the run") from None
        except ChildHangs:
            raise RunError(
                f"math-verify does not respond on {found!r}; the same command resumes the run"
            ) from None
        except ChildError as error:
            kind = RunError if error.may_pass else InputError
            raise kind(
                f"math-verify could not be started ({error}); is the package math-verify installed?"
            ) from None


def answers() -> AnswerFunction:
    """Runs in the child: reads [right, found], and replies whether they are equal."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # the LaTeX parser prints to both
    os.dup2(quiet, 2)
    sys.stdout = os.fdopen(quiet, "w", encoding="utf-8")
    logging.disable(logging.CRITICAL)

    from lockstep.rewards.math_equality import are_equal

    def compute_verdict(question: list[str]) -> Iterator[bool]:
        # by default the signal ends the process
        signal.setitimer(signal.ITIMER_PROF, _CPU_LIMIT_S)
        same = are_equal(*question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        yield same

    return compute_verdict
