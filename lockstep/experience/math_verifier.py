"""Checks mathematical answers with math-verify, in a child process that dies rather than hangs.

Some short answers take math-verify for ever: 9^9^9^9, a large factorial, a sum to a high power. Its own time limits are
signals, which work in the main thread only and do not interrupt one long operation on integers. So it runs in a child
process under a limit on CPU time that the system enforces; being killed means that there is no verdict. It is CPU time,
because a verdict should not depend on what else the machine does.

This file is also the child's program. It imports nothing of the project, so that the child starts without torch.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import threading

_CPU_LIMIT_S = 3.0
_LONGEST_TEXT = 1000  # characters; the last ones are kept, where an answer stands
_CACHE_SIZE = 1 << 16


def verify(gold: str, text: str) -> bool | None:
    """Whether the answer in `text` equals the one in `gold`; repeated questions are answered from memory.

    Args:
        gold: The right answer.
        text: A response, or what of it holds the answer. math-verify takes the last expression it finds.

    Returns:
        None where the child could not tell within its time.
    """
    return _remembered(os.getpid(), gold[-_LONGEST_TEXT:], text[-_LONGEST_TEXT:])


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _remembered(pid: int, gold: str, text: str) -> bool | None:
    return _child(pid).ask(gold, text)


@functools.cache
def _child(pid: int) -> Child:
    """The child of this process: after a fork, two processes must not share one pipe."""
    child = Child()
    atexit.register(child.close)
    return child


class Child:
    """A running verifier, started when first asked and again after it died; may be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, gold: str, text: str) -> bool | None:
        """One question; None if the child died of it."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()
            process = self._process or _started()
            self._process = None  # back only after a whole answer: an interrupted question must not answer the next one
            verdict = _ask(process, json.dumps([gold, text]))
            if verdict is None:
                process.communicate()  # closes the pipes and waits, so that no dead child is left
            else:
                self._process = process
            return verdict

    def close(self) -> None:
        """Ends the process: its input ends, and so does it."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _ask(process: subprocess.Popen[str], question: str) -> bool | None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    reply = process.stdout.readline()
    return json.loads(reply) if reply else None


def _started() -> subprocess.Popen[str]:
    # Run as a file and with -P: the child then finds the same installed packages, and no module of this folder.
    command = [sys.executable, "-P", __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(
            f"math-verify could not be started (exit status {process.wait()}); its message is above; "
            "is the package math-verify installed?"
        )
    return process


def _serve() -> None:
    """The child: reads [gold, text] per line, answers true or false per line."""
    import logging

    from math_verify import parse
    from math_verify import verify as equal

    replies = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    print("ready", file=replies, flush=True)
    os.dup2(quiet, 1)  # the parser of LaTeX talks on both
    os.dup2(quiet, 2)
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        gold, text = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, _CPU_LIMIT_S)  # its signal, left alone, ends the process
        verdict = equal(parse(gold, parsing_timeout=0), parse(text, parsing_timeout=0), timeout_seconds=0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(bool(verdict)), file=replies, flush=True)


if __name__ == "__main__":
    _serve()
