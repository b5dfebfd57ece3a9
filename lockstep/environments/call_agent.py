"""A Python function as an agent: the program that calls it with the row, and writes its answer.

Run as `python -m lockstep.environments.call_agent file.py:function`; see docs/guides/agents.md.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from lockstep.config.user_code import describe_object, load_object
from lockstep.core.errors import InputError
from lockstep.environments.agents import ANSWER_FILE


def call_agent(reference: str) -> None:
    """Calls the function with the row on the standard input.

    Raises:
        InputError: It cannot be found, or did not return text.
    """
    run = load_object(reference, "environment.agent", "function")
    answer = run(json.loads(sys.stdin.readline()))
    if not isinstance(answer, str):
        raise InputError(f"{reference} returned {describe_object(answer)}; return text")
    Path(os.environ[ANSWER_FILE]).write_text(answer, encoding="utf-8", errors="replace")


if __name__ == "__main__":
    call_agent(sys.argv[1])
