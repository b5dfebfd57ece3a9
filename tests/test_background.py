"""Background work never keeps a process alive, and what it raises reaches the caller."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockstep.system.background import run_in_background

HANGS = """
import threading
from lockstep.system.background import run_in_background
begun = threading.Event()
run_in_background(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
raise KeyboardInterrupt
"""


def test_a_process_exits_while_its_background_work_hangs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120
    )
    assert "KeyboardInterrupt" in done.stderr


def test_run_in_background_gives_result_or_error_to_caller() -> None:
    assert run_in_background(lambda: 7).result(60) == 7
    with pytest.raises(ZeroDivisionError):
        run_in_background(lambda: 1 // 0).result(60)
