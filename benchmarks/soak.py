"""A long run under `--supervise` with a fault every so many steps, beside the same run undisturbed.

    python -m benchmarks.soak [--steps 2000] [--every 20] [--samplers 2] [--save]

A tiny PPO run with a reward function in a process of its own and, from two on, its samplers in others. Faults take
turns: the run is killed, a sampler is killed, and a call that touches the disk fails with EIO, ESTALE or ENOSPC; the
moment within the step, and the call, are random. At the end all bytes that the runs leave are compared, but for clock
times and crash reports; memory and descriptors of the undisturbed process are read every tenth of the run; and nothing
may be left over: processes, files that were written aside, temporary folders, shared memory. Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from benchmarks.harness import environment, save, status_bytes

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "tests/fixtures/fault_shim.c"
REWARD = """
def count_even(prompt, response, answer, row):
    return sum(character in "02468" for character in response) / max(1, len(response))
"""
# The disk's fault comes at a signal, into a process that Lockstep has started: Python runs this file at every start.
AT_START = """
import ctypes, json, os, signal

def arm(number, frame):
    with open(os.environ["LOCKSTEP_SOAK"] + "/fault.json") as file:
        kind, at, fault, counter, journal, folder = json.load(file)
    os.environ["FAULT"] = f"{kind} {at} {fault} {os.getpid()} {counter} {journal} {folder}"
    ctypes.CDLL(os.environ["LD_PRELOAD"]).arm()
    del os.environ["FAULT"]

signal.signal(signal.SIGUSR1, arm)
"""
RECIPE = {
    "algorithm": "ppo",
    "model": {
        "scratch": {
            "config": {
                "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 96,
            }
        }
    },
    "data": {
        "task": {"name": "arithmetic", "train_questions": 64, "validation_questions": 8},
        "prompt": "{question}\n",
        "max_prompt_tokens": 64,
    },
    "learner": {"device": "cpu"},
    "reward": {"type": "python", "function": "../rewards.py:count_even"},
    "sampling": {"max_tokens": 12},
    "validation_sampling": {"max_tokens": 12, "temperature": 0.0},
    "ppo": {"num_prompts_per_step": 8, "num_generations": 2, "global_batch_size": 8},
    "policy": {"lr": 1.0e-4},
    "critic": {"lr": 1.0e-4},
    "run": {"max_steps": 2_000, "save_every": 5, "validate_every": 50, "keep": 2, "folder": "run"},
}  # fmt: skip
KILL_RUN, KILL_SAMPLER = "run killed", "sampler killed"
FAULTS = (KILL_RUN, errno.EIO, KILL_SAMPLER, errno.ESTALE, KILL_RUN, errno.ENOSPC)
DISK = 0
"""The calls that count, as `fault_shim.c` numbers them."""
CALLS = 40
"""The disk's call that fails is one of so many, those of a step or two."""
CLOCKS = ("timings.jsonl", "messages.jsonl", "report.html", "crash.txt", ".lock")
KEPT = ("torchinductor_", "pymp-")
"""Temporary folders: torch's for all its processes; of Python's server of processes, which ends with a killed run."""
TENTHS = 10
TOO_LONG_S = 600.0
"""A run that logs no step for so long hangs."""
ENDING_S = 60.0
"""Processes whose parent is gone have so long to notice."""


@dataclass(frozen=True)
class Held:
    """What a process holds after a step: memory in MB, and descriptors."""

    step: int
    rss_mb: float
    descriptors: int


@dataclass
class Outcome:
    """One of the two runs.

    Attributes:
        code: Its exit code.
        told: What it wrote to standard error.
        wall_s: Seconds that it took.
        contents: The bytes that it leaves, by file, but for clock times.
        left_over: What should be gone: processes, files, folders, shared memory.
        held: Of the process that was given, over time.
        faults: Number of faults by kind.
    """

    code: int = 0
    told: str = ""
    wall_s: float = 0.0
    contents: dict[str, bytes] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def restarts(self) -> int:
        """How often the supervisor gave the command again."""
        return self.told.count("the same command again")


class Soak:
    """A folder with the recipe, in which both runs are made.

    Args:
        folder: Where they run.
        steps: Length of a run.
        every: Steps between two faults.
        samplers: Number of samplers; one is in the run's own process.
    """

    def __init__(self, folder: Path, steps: int, every: int, samplers: int) -> None:
        self._folder, self._steps, self._every, self._samplers = folder, steps, every, samplers
        self._kinds = itertools.cycle([kind for kind in FAULTS if kind != KILL_SAMPLER or samplers > 1])
        self._chance = random.Random(0)
        (folder / "tmp").mkdir(parents=True)
        (folder / "at_start").mkdir(exist_ok=True)
        (folder / "at_start" / "sitecustomize.py").write_text(AT_START)
        (folder / "rewards.py").write_text(REWARD)  # one file of both runs: its path is in code.json
        self._shim = folder / "fault_shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._shim, SHIM, "-ldl"], check=True)

    def run(self, name: str, disturb: bool) -> Outcome:
        """Makes one run to its end, and cleans nothing up."""
        work = self._folder / name
        work.mkdir()
        (work / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
        command = [sys.executable, "-m", "lockstep", "train", "tiny.yaml", f"run.max_steps={self._steps}"]
        command += [f"sampler.replicas={self._samplers}", f"sampler.max_restarts={self._steps}"]
        command += ["--supervise"] if disturb else []
        shared, found, began = _shared_memory(), Outcome(), time.monotonic()
        with (work / "told").open("w") as told:
            process = subprocess.Popen(
                command, cwd=work, env=self._environment(), stderr=told, stdout=told, start_new_session=True
            )
            try:
                self._watch(process, work / "run", disturb, found)
            finally:
                self._end(process)
        found.code, found.wall_s = process.wait(), time.monotonic() - began
        found.told, found.contents = (work / "told").read_text(errors="replace"), contents(work / "run")
        while time.monotonic() < began + found.wall_s + ENDING_S:
            found.left_over = self._left_over(work / "run", shared)
            if not found.left_over:
                break
            time.sleep(0.5)
        return found

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the run and what it has started, if it has not come to its end."""
        for pid in [process.pid, *self._processes()] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left_over(self, run: Path, shared: set[Path]) -> list[str]:
        aside = [path for path in run.rglob(".*") if path.name not in CLOCKS]
        temporary = [path for path in (self._folder / "tmp").iterdir() if not path.name.startswith(KEPT)]
        places = [*aside, *temporary, *(_shared_memory() - shared)]
        return [*map(str, places), *(f"process {pid}: {_command_of(pid)}" for pid in self._processes())]

    def _watch(self, process: subprocess.Popen[bytes], run: Path, disturb: bool, found: Outcome) -> None:
        """Reads what the process holds, and makes faults, until it ends."""
        due, tenth, moved = self._every, self._steps // TENTHS, (0, time.monotonic())
        while process.poll() is None:
            time.sleep(0.02)
            step = _newest_step(run)
            if step != moved[0]:
                moved = step, time.monotonic()
            elif time.monotonic() - moved[1] > TOO_LONG_S:
                raise RuntimeError(f"the run hangs after step {step}")
            if step >= tenth * (len(found.held) + 1):
                found.held.append(_read_held(step, process.pid))
            if disturb and due <= step < self._steps - 1:
                time.sleep(self._chance.uniform(0.0, 0.1))
                found.faults[self._make_fault(next(self._kinds), process.pid, run)] += 1
                due += self._every

    def _make_fault(self, kind: str | int, supervisor: int, run: Path) -> str:
        """Makes a fault. Returns its name."""
        main = next(iter(_children(supervisor)), None)
        if main is None:  # the fault before has ended it only now
            return "none, between two processes"
        if isinstance(kind, int):
            counter = self._folder / f"counter_{time.monotonic_ns()}"  # processes may still count in the one before
            counter.write_bytes(bytes(8))
            plan = [DISK, self._chance.randrange(CALLS), kind, str(counter), os.devnull, str(run.resolve())]
            (self._folder / "fault.json").write_text(json.dumps(plan))
            os.kill(main, signal.SIGUSR1)
            return errno.errorcode[kind]
        samplers = [pid for server in _children(main, "forkserver") for pid in _children(server)]
        os.kill(main if kind == KILL_RUN else self._chance.choice(samplers), signal.SIGKILL)
        return kind

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self._folder / "at_start"), str(ROOT)])
        own = {"LD_PRELOAD": str(self._shim), "LOCKSTEP_SOAK": str(self._folder), "PYTHONPATH": path}
        own["TMPDIR"] = str(self._folder / "tmp")
        return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **own}

    def _processes(self) -> list[int]:
        """Processes of the runs, by the variable that they inherit."""
        own = f"LOCKSTEP_SOAK={self._folder}".encode()
        return [pid for pid in _all_processes() if own in _read(f"/proc/{pid}/environ").split(b"\0")]


def contents(run: Path) -> dict[str, bytes]:
    """All that a run leaves but clock times."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in CLOCKS]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def _newest_step(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), (run / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        return int(json.loads(file.read().rstrip(b"\n").rsplit(b"\n", 1)[-1])["step"])
    return 0


def _read_held(step: int, pid: int) -> Held:
    return Held(step, status_bytes("VmRSS", pid) / 1e6, len(os.listdir(f"/proc/{pid}/fd")))


def _children(pid: int, named: str = "") -> list[int]:
    listed = _read(f"/proc/{pid}/task/{pid}/children").split()
    return [int(child) for child in listed if named in _command_of(int(child))]


def _command_of(pid: int) -> str:
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def _shared_memory() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


def compare(calm: Outcome, stormy: Outcome) -> list[str]:
    """What is wrong with two runs; empty if nothing is."""
    wrong = [f"the {name} run ended with {one.code}" for name, one in (("calm", calm), ("stormy", stormy)) if one.code]
    names = sorted(calm.contents.keys() | stormy.contents.keys())
    wrong += [f"{name} differs" for name in names if calm.contents.get(name) != stormy.contents.get(name)]
    return wrong + [f"left over: {what}" for one in (calm, stormy) for what in one.left_over]


def soak(folder: Path, steps: int, every: int, samplers: int) -> tuple[Outcome, Outcome]:
    """Makes both runs, and says what they came to."""
    place = Soak(folder, steps, every, samplers)
    calm = place.run("calm", disturb=False)
    print(f"undisturbed: exit code {calm.code}, {calm.wall_s:.0f} s; it held {_show(calm.held)}", flush=True)
    stormy = place.run("stormy", disturb=True)
    print(
        f"disturbed: exit code {stormy.code}, {stormy.wall_s:.0f} s, {dict(stormy.faults)}, {stormy.restarts} "
        f"restarts; its supervisor held {_show(stormy.held)}; {len(stormy.contents)} files compared",
        flush=True,
    )
    return calm, stormy


def _show(held: Sequence[Held]) -> str:
    return ", ".join(f"{one.rss_mb:.1f} MB and {one.descriptors} descriptors at {one.step}" for one in held)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--every", type=int, default=20, help="steps between two faults")
    parser.add_argument("--samplers", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the runs are kept; default: a temporary folder, removed")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/soak.json")
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    calm, stormy = soak(folder.resolve(), options.steps, options.every, options.samplers)
    wrong = compare(calm, stormy)
    print("\n".join(wrong) or "the same bytes, and nothing left over")
    if options.save:
        details = {
            "steps": options.steps,
            "every": options.every,
            "faults": dict(stormy.faults),
            "restarts": stormy.restarts,
            "files_compared": len(stormy.contents),
            "wrong": wrong,
            "supervisor": [asdict(one) for one in stormy.held],
        }
        print(save("soak", environment(1), calm.held, details))
    if options.folder is None and not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
