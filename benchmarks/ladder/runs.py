"""Runs of the ladder, several at a time; what has been measured is not measured again, and a killed
run resumes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from benchmarks.harness import environment
from benchmarks.ladder.results import ROOT, Key, add_result, collect, digest_recipe, read_results
from benchmarks.ladder.rung import Arm, Rung
from lockstep.config.loading import LoadedRecipe
from lockstep.core.exit_codes import INCONCLUSIVE


@dataclass(frozen=True)
class Ladder:
    """The place and the means of all runs.

    Attributes:
        out: Folder of runs and logs.
        jobs: Runs at a time, each on one thread.
    """

    out: Path
    jobs: int

    def run(self, rungs: Sequence[Rung], arms: Sequence[str], seeds: Sequence[int] | None) -> None:
        """Trains what has not been measured: the arms of a rung and a seed in turn, since they
        share a warm start.
        """
        for rung in rungs:
            if rung.missing:
                print(f"left out: {rung.missing}", flush=True)
        there = [rung for rung in rungs if not rung.missing]
        groups = [
            (rung, seed)
            for rung in there
            for seed in (seeds if seeds is not None else range(rung.seeds))
        ]
        lock = Lock()
        with ThreadPoolExecutor(self.jobs) as pool:
            for done in [
                pool.submit(self._run_group, rung, arms, seed, lock) for rung, seed in groups
            ]:
                done.result()

    def _run_group(self, rung: Rung, arms: Sequence[str], seed: int, lock: Lock) -> None:
        for name, arm in rung.arms.items():
            if not arms or name in arms:
                self._run_arm(rung, name, arm, seed, lock)

    def _run_arm(self, rung: Rung, name: str, arm: Arm, seed: int, lock: Lock) -> None:
        loaded = arm.load(seed)
        key = key_of(loaded, name, seed)
        with lock:
            measured = any(one.key == key for one in read_results(rung.name))
        if measured:
            return
        folder = self.out / rung.name / f"{name}-{seed}-{key.recipe}"
        log = folder.with_suffix(".log")
        if (
            loaded.warm_start is not None
            and not (ROOT / loaded.warm_start.run_folder / "final").exists()
        ):
            self._train("lockstep", loaded.warm_start.arguments, log)
        own = (f"run.folder={folder}",)
        cpu_s = self._train(arm.module, (*loaded.arguments, *own), log)
        result = collect(rung, key, folder, cpu_s, environment())
        with lock:
            add_result(rung.name, result)
        print(
            f"{rung.name} · {name} · seed {seed} · {rung.metric} {result.end:.3f} · {cpu_s:.0f} "
            "CPU s",
            flush=True,
        )

    def _train(self, module: str, arguments: Iterable[str], log: Path) -> float:
        """Trains on one thread. Returns CPU seconds, those of child processes among them.

        Raises:
            RuntimeError: The run failed; the log says why.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with log.open("a") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", module, "train", *arguments],
                cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
        if code not in (0, INCONCLUSIVE):
            raise RuntimeError(f"a run of the ladder failed with exit code {code}; read {log}")
        return usage.ru_utime + usage.ru_stime


def key_of(loaded: LoadedRecipe, arm: str, seed: int) -> Key:
    """The key of a run's result."""
    return Key(arm, seed, digest_recipe(loaded))
