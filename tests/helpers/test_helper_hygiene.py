"""What a helper's code does besides its work: it sleeps, prints nonsense, starts processes, reaches for more."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lockstep.core.types import Prompt
from lockstep.helpers import process
from lockstep.rewards.base import RewardError
from lockstep.rewards.build import build
from lockstep.rewards.options import RewardSection
from lockstep.rewards.python_reward import PythonReward
from lockstep.system.printable import make_printable

PROMPT = Prompt("rows.jsonl:7", "What?", (1, 2), {})


def reward(text: str, confined: bool = False, timeout_s: float = 60.0) -> PythonReward:
    Path("mine.py").write_text(text)
    return PythonReward("mine.py:f", timeout_s, confined)


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
def test_a_terminal_gets_nothing_to_obey(text: str, printable: str) -> None:
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
def test_what_a_reward_prints_in_any_way_reaches_the_terminal_by_name(capfd: pytest.CaptureFixture[str]) -> None:
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
def test_a_reward_that_sleeps_at_import_is_named_and_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_START_S", 1.0)
    with pytest.raises(RewardError, match=r"reward\.function mine\.py:f: importing it takes too long"):
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
@pytest.mark.parametrize("after", ["pass", "import time; time.sleep(1000)"], ids=["idle", "hanging"])
def test_what_a_reward_starts_ends_with_it(after: str) -> None:
    own = reward(STARTS.format(after), timeout_s=20.0 if after == "pass" else 2.0)
    if after == "pass":
        assert score(own) == 1.0
        own._child.close()
    else:
        with pytest.raises(RewardError, match="did not answer"):
            score(own)
    started = [int(pid) for pid in Path("started").read_text().split()]
    assert len(started) == 3
    assert all(ends(pid) for pid in started)


FORKS = "import os, time\ndef f(*given):\n    if os.fork() == 0: time.sleep(1000)\n    {}\n    return 1.0"


@pytest.mark.usefixtures("sandboxes", "in_tmp")
def test_what_a_confined_reward_starts_ends_with_it() -> None:
    own = reward(FORKS.format("pass"), confined=True)
    assert score(own) == 1.0
    assert own._child.pid is not None
    started = psutil.Process(own._child.pid).children(recursive=True)
    assert len(started) == 2
    own._child.close()
    assert all(ends(one.pid) for one in started)


@pytest.mark.usefixtures("sandboxes", "in_tmp")
@pytest.mark.parametrize(("how", "ended"), [("os.abort()", "killed by SIGSEGV"), ("os._exit(3)", "exit status 3")])
def test_the_end_of_a_confined_reward_is_named(how: str, ended: str) -> None:
    with pytest.raises(RewardError, match=rf"ended its process \({ended}\)"):
        score(reward(FORKS.format(how), confined=True))


RUNS = """
import sys
from lockstep.rewards.python_reward import PythonReward
from lockstep.core.types import Prompt
own = PythonReward("mine.py:f", 60.0, confined=bool(sys.argv[1:]))
print(own([Prompt("", "", (), {})], ["x"], [""]), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("in_tmp")
def test_what_a_reward_starts_ends_with_a_killed_run() -> None:
    Path("mine.py").write_text(STARTS.format("pass"))
    Path("runs.py").write_text(RUNS)
    command = [sys.executable, "runs.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "[1.0]\n"
        started = [int(pid) for pid in Path("started").read_text().split()]
        run.send_signal(signal.SIGKILL)
    assert all(ends(pid) for pid in started)


@pytest.mark.usefixtures("sandboxes", "in_tmp")
def test_a_confined_reward_ends_with_a_killed_run() -> None:
    Path("mine.py").write_text(FORKS.format("time.sleep(1000)"))
    Path("runs.py").write_text(RUNS)
    with subprocess.Popen([sys.executable, "runs.py", "confined"], stdin=subprocess.PIPE) as run:
        while len(started := psutil.Process(run.pid).children(recursive=True)) < 3:  # bubblewrap, the reward, its fork
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    assert all(ends(one.pid) for one in started)


REACHES = """
import os, socket
def f(prompt, response, answer, row):
    got = 0
    for reach in (
        lambda: open("/etc/passwd"),
        lambda: open(PATH, "w"),
        lambda: open("mine.py", "w"),
        lambda: socket.create_connection(ADDRESS, 3),
        lambda: os.kill(PROCESS, 0),
        lambda: os.environ["SECRET_KEY"],
    ):
        try:
            reach()
            got += 1
        except (OSError, KeyError): pass
    import tempfile
    with tempfile.TemporaryFile() as file: file.write(b"its own")
    return got
"""


@pytest.mark.usefixtures("sandboxes", "in_tmp")
def test_a_confined_reward_reaches_only_what_it_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = (str(tmp_path / "new"), server.getsockname(), os.getpid())
        text = f"PATH, ADDRESS, PROCESS = {given}\n{REACHES}"
        assert score(reward(text)) == 6
        Path("mine.py").write_text(text)
        confined = build(RewardSection(type="python", function="mine.py:f", confined=True))
        assert confined([PROMPT], ["x"], [""]) == [0]
    assert Path("mine.py").read_text() == text


@pytest.mark.usefixtures("in_tmp")
def test_code_is_named_before_it_is_imported(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("import os\nos.write(2, b'imported\\n')\ndef f(*given): return 1.0")
    build(RewardSection(type="python", function="mine.py:f"))
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()[:16]
    assert capfd.readouterr().err.startswith(
        f"note: reward.function mine.py:f runs {Path('mine.py').resolve()} (sha256 {digest})\n"
    )
    Path("mine.py").write_text("raise ValueError")
    with pytest.raises(RewardError, match="cannot be imported"):
        build(RewardSection(type="python", function="mine.py:f"))
    assert "runs" in capfd.readouterr().err
