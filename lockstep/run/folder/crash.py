"""The crash report `crash.txt`, which an unexpected error leaves in the run's folder."""

from __future__ import annotations

import contextlib
import json
import resource
import time
import traceback
from pathlib import Path

import torch

from lockstep.config.loading import Loaded
from lockstep.report.log import CRASH
from lockstep.run.checkpoint.checkpoints import Checkpoints
from lockstep.run.folder.machine import environment


def write_crash(error: BaseException, loaded: Loaded, folder: Path) -> None:
    """Writes the traceback, a worker's too, and the environment of the run; replaces an older report.

    The phase and the step stand behind the trace: `Progress.phase` adds them to the error. No environment
    variable is written. Where the disk or the memory is full, nothing is.
    """
    with contextlib.suppress(OSError, MemoryError):
        found = Checkpoints(folder / "checkpoints", 1).find()
        lines = [
            f"time        {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
            f"checkpoint  {found[-1][1] if found else 'none yet'}",
            f"memory      {_memory()}",
            f"versions    {json.dumps(environment(loaded))}",
            "",
            *traceback.format_exception(error),
        ]
        (folder / CRASH).write_text("\n".join(line.rstrip("\n") for line in lines) + "\n", encoding="utf-8")


def _memory() -> str:
    """Memory of this process, of the machine and of its GPUs, as text."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    parts = [f"this process {most:.2f} GiB at most"]
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            parts.append(f"{name} {int(value.split()[0]) / 2**20:.2f} GiB")
    if torch.cuda.is_initialized():
        parts += [
            f"GPU {i}: {torch.cuda.max_memory_allocated(i) / 2**30:.2f} GiB at most"
            for i in range(torch.cuda.device_count())
        ]
    return ", ".join(parts)
