"""Tools for every benchmark: timing side by side, peak memory, a Markdown table, and a description
of the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import json
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULTS = Path(__file__).parent / "results"
WARMUP = 3
"""Steps of a process that do not count, on either side of a comparison."""

_FORGET_PEAK = Path("/proc/self/clear_refs")


def parser_of(doc: str | None, saves: str = "") -> argparse.ArgumentParser:
    """A parser of options that shows a description as it is written.

    Args:
        doc: What the benchmark is.
        saves: The file of `benchmarks/results` that the option --save writes; empty: no such
            option.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if saves:
        parser.add_argument(
            "--save", action="store_true", help=f"write benchmarks/results/{saves}.json"
        )
    return parser


def measure_interleaved(
    fns: Sequence[Callable[[], object]],
    repeats: int,
    cpu_clocks: Sequence[Callable[[], float]] | None = None,
) -> list[list[float]]:
    """CPU seconds of several functions in turn (a b a b …), so that other load on the machine meets
    them all alike.

    Args:
        fns: The functions.
        repeats: Times that each is timed.
        cpu_clocks: Gives CPU seconds, for each function; None: those of this process.
    """
    cpu_clocks = cpu_clocks or [time.process_time] * len(fns)
    for fn in fns:
        fn()  # a first time, which does not count
    spent: list[list[float]] = [[] for _ in fns]
    for _ in range(repeats):
        for fn, cpu_s, seconds in zip(fns, cpu_clocks, spent, strict=True):
            start = cpu_s()
            fn()
            seconds.append(cpu_s() - start)
    return spent


def cpu_clock(pid: int) -> float:
    """CPU seconds of a process so far, all its threads together; Linux only."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def side(python: Path, module: str, *options: str, threads: int = 1) -> dict[str, Any]:
    """Runs one side of a comparison in its own process.

    Returns the JSON object of its last line.
    """
    alone = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    command = [str(python), "-m", module, *options]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        command, cwd=root, env=os.environ | alone, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def peak_rss_mb() -> float:
    """The peak memory of this process so far, MB (10⁶ bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


class MemoryGrowth:
    """Bytes held at the peak beyond those held at its creation.

    Resident memory of this process. What was freed before is handed back to the system first, or it
    would be used again unseen. Run the work once before, so that the code it loads does not count.
    """

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _FORGET_PEAK.write_text("5")
        self._before = self._bytes("VmRSS")

    def peak(self) -> float:
        """Bytes so far."""
        return self._bytes("VmHWM") - self._before

    def _bytes(self, field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024.0


@dataclass(frozen=True)
class Row:
    """One comparison of a table.

    Attributes:
        name: What was compared.
        baseline: Figure of the other program.
        ours: Figure of Lockstep, in the same unit.
        ratio: How many times better ours is.
    """

    name: str
    baseline: float
    ours: float
    ratio: float


def table(rows: Sequence[Row], baseline: str, unit: str) -> str:
    """The rows as a Markdown table; `baseline` names the other program."""
    head = [f"| {unit} | {baseline} | Lockstep | ratio |", "|---|---:|---:|---:|"]
    return "\n".join(
        head + [f"| {r.name} | {r.baseline:.4g} | {r.ours:.4g} | {r.ratio:.2f}× |" for r in rows]
    )


def environment(threads: int | None = None) -> str:
    """One line on the machine and date of a figure; `threads` if other processes were measured."""
    return (
        f"{_cpu_model()}, {os.cpu_count()} cores, {threads or torch.get_num_threads()} thread(s), "
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{datetime.date.today().isoformat()}"
    )


def save(
    name: str, where: str, rows: Sequence[DataclassInstance], details: Mapping[str, object]
) -> Path:
    """Writes a table, its `environment`, and further details to
    `benchmarks/results/<name>.json`.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {"environment": where, "rows": [asdict(row) for row in rows], **details}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
