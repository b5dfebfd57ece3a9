"""What a helper's code does besides its work: it sleeps, prints nonsense, starts processes, reaches
for more.
"""

from __future__ import annotations

import gc
import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lockstep.core.types import Prompt
from lockstep.helpers import process
from lockstep.rewards.base import RewardError
from lockstep.rewards.build import build_reward
from lockstep.rewards.options import RewardSection
from lockstep.rewards.python_reward import PythonReward
from lockstep.system.printable import make_printable

PROMPT = Prompt("rows.jsonl:7", "What?", (1, 2), {})


def reward(text: str, timeout_s: float = 60.0) -> PythonReward:
    Path("mine.py").write_text(text)
    return PythonReward("mine.py:f", timeout_s)


def score(own: PythonReward) -> float | None:
    [value] = own([PROMPT], ["x"], [""])
    return value


def ends(pid: int) -> bool:
    """True if a process ends within a generous time."""
    for _ in range(600):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("text", "printable"),
    [
        ("a\tb\nc ä→", "a\tb\nc ä→"),
        ("\x1b[2Jgone\x07\r", "␛[2Jgone␇␍"),
        ("\x9b2J\x7f", "⟨U+009B⟩2J⟨U+007F⟩"),
        ("half \ud800", "half ⟨U+D800⟩"),
        ("txt.\u202eexe", "txt.⟨U+202E⟩exe"),
    ],
)
def test_make_printable_replaces_control_characters(text: str, printable: str) -> None:
    assert make_printable(text) == printable


PRINTS = r"""
import os, subprocess, sys
def f(*given):
    print("\x1b]0;title\x07 half \ud800")
    os.write(1, b"\x1b[2J raw\n")
    subprocess.run([sys.executable, "-c", "print('\\x1b[31m from a process')"])
    return 1.0
"""


@pytest.mark.usefixtures("in_tmp")
def test_reward_output_reaches_terminal_with_control_characters_escaped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    own, out = reward(PRINTS), ""
    for _ in range(100):
        assert score(own) == 1.0
        out += capfd.readouterr().out
        if "from a process" in out:
            break
    assert "␛]0;title␇ half ⟨U+D800⟩\n" in out
    assert "␛[2J raw\n" in out
    assert "␛[31m from a process\n" in out
    assert "\x1b" not in out


@pytest.mark.usefixtures("in_tmp")
def test_a_reward_that_sleeps_at_import_is_named_and_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_START_S", 1.0)
    with pytest.raises(RewardError, match=r"importing mine\.py:f takes too long"):
        reward("import time\ntime.sleep(1000)")


STARTS = """
import os, subprocess, sys
def start(**options):
    code = "import time; time.sleep(1000)"
    return subprocess.Popen([sys.executable, "-c", code], **options).pid
def f(*given):
    own, apart = start(), start(start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(write, str(os.getpid()).encode())
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])
        os._exit(0)
    with open("started", "w") as file: print(own, apart, int(os.read(read, 20)), file=file)
    {}
    return 1.0
"""


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    "after", ["pass", "import time; time.sleep(1000)"], ids=["idle", "hanging"]
)
def test_processes_started_by_reward_end_with_it(after: str) -> None:
    own = reward(STARTS.format(after), timeout_s=20.0 if after == "pass" else 2.0)
    if after == "pass":
        assert score(own) == 1.0
        del own
        gc.collect()
    else:
        with pytest.raises(RewardError, match="timed out after"):
            score(own)
    started = [int(pid) for pid in Path("started").read_text().split()]
    assert len(started) == 3
    assert all(ends(pid) for pid in started)


RUNS = """
import sys
from lockstep.rewards.python_reward import PythonReward
from lockstep.core.types import Prompt
own = PythonReward("mine.py:f", 60.0)
print(own([Prompt("", "", (), {})], ["x"], [""]), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("in_tmp")
def test_processes_started_by_reward_end_if_run_is_killed() -> None:
    Path("mine.py").write_text(STARTS.format("pass"))
    Path("runs.py").write_text(RUNS)
    command = [sys.executable, "runs.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "[1.0]\n"
        started = [int(pid) for pid in Path("started").read_text().split()]
        run.send_signal(signal.SIGKILL)
    assert all(ends(pid) for pid in started)


@pytest.mark.usefixtures("in_tmp")
def test_reward_file_and_hash_are_printed_before_import(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("import os\nos.write(2, b'imported\\n')\ndef f(*given): return 1.0")
    build_reward(RewardSection(type="python", function="mine.py:f"))
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()[:16]
    assert capfd.readouterr().err.startswith(
        f"note: reward.function mine.py:f runs {Path('mine.py').resolve()} (sha256 {digest})\n"
    )
    Path("mine.py").write_text("raise ValueError")
    with pytest.raises(RewardError, match="cannot be imported"):
        build_reward(RewardSection(type="python", function="mine.py:f"))
    assert "runs" in capfd.readouterr().err
