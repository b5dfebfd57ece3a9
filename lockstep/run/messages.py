"""The messages of a run, `messages.jsonl`: what the program told the user and when, and how each process ended."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.report.log import MESSAGES
from lockstep.whole_files import append


def add_message(folder: Path, step: int | None, text: str) -> None:
    """Appends a message; where the disk refuses, the message was at least shown.

    Args:
        folder: Folder of the run.
        step: Steps done; None where that is not known.
        text: The message.
    """
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "step": step, "message": text}
    with contextlib.suppress(OSError, LockstepError):
        append(folder / MESSAGES, json.dumps(line).encode() + b"\n")
