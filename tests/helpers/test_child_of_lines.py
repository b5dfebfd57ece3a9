"""A child process that answers in lines leaves quietly when the asking side has gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ANSWERS = """
import time

def answers():
    def answer(question):
        yield "first"
        time.sleep(0.1)
        yield "second"
    return answer
"""

ASKING = """
import threading
from lockstep.helpers.process import HelperProcess

child, begun = HelperProcess("asked_here"), threading.Event()

def ask():
    with child.ask_streaming("?") as reply:
        reply(60.0)
        begun.set()
        threading.Event().wait()

threading.Thread(target=ask, daemon=True).start()
assert begun.wait(60.0)
"""


def test_child_prints_no_error_if_parent_exits_during_answer(
    tmp_path: Path,
) -> None:
    (tmp_path / "asked_here.py").write_text(ANSWERS)
    (tmp_path / "asking.py").write_text(ASKING)
    parent = subprocess.run(
        [sys.executable, "asking.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (parent.returncode, parent.stderr) == (0, "")
