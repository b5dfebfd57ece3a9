"""Versions, machine and threads of a run, recorded in its `environment.json`."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from lockstep.config.loading import LoadedRecipe
from lockstep.models.device import keep_fp32
from lockstep.report.log import ENVIRONMENT, read_environment
from lockstep.run.folder.files import write_once
from lockstep.system.printable import print_text
from lockstep.version import __version__


def describe_machine() -> dict[str, Any]:
    """Versions, machine and threads of this process, and its fp32 matmul mode on GPUs.

    Environment variables are not included.
    """
    precision = {"precision": keep_fp32()} if torch.cuda.is_available() else {}
    return {
        "lockstep": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.platform(),
        **precision,
    }


@contextmanager
def use_recorded_machine(loaded: LoadedRecipe, folder: Path) -> Iterator[None]:
    """Records the machine in a folder if needed; in the block, torch uses the recorded threads.

    The caller holds the folder's lock.
    """
    file = folder / ENVIRONMENT
    now = {"recipe": loaded.name, **describe_machine()}
    write_once(file, json.dumps(now, indent=2) + "\n")
    noted = read_environment(folder)
    usual = torch.get_num_threads()
    threads = int(noted.get("threads", usual))
    if threads != usual:
        print_text(
            f"note: {folder} keeps the {threads} threads it started with; the default is now "
            f"{usual}"
        )
    if {**noted, "threads": usual} != now:
        print_text(
            f"note: {file} differs from the current environment; resumed steps may differ in the "
            "last bits"
        )
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
