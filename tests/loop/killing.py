"""Runs that are killed or disturbed while they work, and what is compared afterwards."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lockstep.report.log import read_metrics


def command(folder: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "lockstep", "train", "tiny.yaml", f"run.folder={folder}", *overrides]


@contextlib.contextmanager
def started(folder: str, *overrides: str, shell: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """The run in a process of its own, in a group of its own; `shell` is what starts it."""
    whole = [*shell, *command(folder, *overrides)]
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        process = subprocess.Popen(whole, stderr=subprocess.PIPE, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGHUP, ours)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Returns when it happened, or when the process is over."""
    while not happened() and process.poll() is None:
        time.sleep(0.001)


def steps_logged(folder: str) -> int:
    return max((int(row["step"]) for row in read_metrics(Path(folder))), default=0)


def being_saved(folder: str) -> bool:
    return any(Path(folder, "checkpoints").glob(".aside_step_*"))


def killed_and_continued(folder: str, kills: int, overrides: tuple[str, ...], chance: random.Random) -> int:
    """Kills the run so many times, every second time while it writes a checkpoint. Returns how many hit one."""
    hits = 0
    for kill in range(kills):
        with started(folder, *overrides) as process:
            goal = steps_logged(folder) + 1  # so that every kill finds the run further than the last
            wait_for(lambda goal=goal: steps_logged(folder) >= goal, process)
            if kill % 2:
                wait_for(lambda: being_saved(folder), process)
            time.sleep(chance.uniform(0.0, 0.01 if kill % 2 else 0.1))
            process.kill()
            assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed; give it more steps"
        hits += being_saved(folder)
    subprocess.run(command(folder, *overrides), check=True, capture_output=True)
    return hits


@contextlib.contextmanager
def meanwhile(*acts: tuple[Callable[[], bool], Callable[[], object]]) -> Iterator[None]:
    """While the block works in this process, does one thing after another, each as soon as something has happened."""
    over = threading.Event()

    def act() -> None:
        for happened, action in acts:
            while not happened():
                if over.wait(0.002):
                    return
            action()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def killing(folder: str, after: list[int], *victim: Callable[[], int | None]) -> Iterator[list[int]]:
    """Kills a process once so many steps are done, at some moment of the next one; yields the victims so far.

    Args:
        folder: Of the run.
        after: So many steps each.
        victim: Finds the process; several take turns.
    """
    victims: list[int] = []

    def kill(find: Callable[[], int | None]) -> None:
        time.sleep(random.random() * 0.1)
        pid = find()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            victims.append(pid)

    turns = zip(after, itertools.cycle(victim), strict=False)
    acts = [(lambda step=step: steps_logged(folder) >= step, partial(kill, find)) for step, find in turns]
    with meanwhile(*acts):
        yield victims


def child_process(name: str) -> int | None:
    """The first child of this process whose name begins so."""
    return next((child.pid for child in multiprocessing.active_children() if child.name.startswith(name)), None)


sampler_process = partial(child_process, "sampler")


def contents(folder: str) -> dict[str, bytes]:
    """All that a run leaves but clock times."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: text for name, text in named.items() if name not in ("timings.jsonl", ".lock", "recipe.yaml")}


def final(folder: str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "final" / "model.safetensors")


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert not [name for name in left if not torch.equal(left[name], right[name])]
