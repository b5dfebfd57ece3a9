"""Environment variables for vLLM; it reads them when it is imported, so they are set before."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import resource_tracker

from lockstep.system.process_defaults import stay_offline


def prepare() -> None:
    """Sets what Lockstep needs, and, unless the user has set these variables, keeps vLLM quiet and
    offline.

    On a CPU, vLLM uses OMP_NUM_THREADS threads, which is set to the worker's share.
    """
    stay_offline()
    # Ctrl-C in a terminal is for the engine's owner, and would otherwise kill tensor-parallel
    # workers at work.
    if os.getpgrp() != os.getpid():
        os.setsid()
    multiprocessing.current_process().daemon = (
        False  # daemons may have no children, as tensor-parallel workers are
    )
    # vLLM leaks shared memory. A resource tracker of its own frees it, without warnings in our
    # program's output.
    resource_tracker._resource_tracker._fd = None  # pyright: ignore[reportAttributeAccessIssue]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
        "0"  # another process would import all of this once more
    )
    for name, value in {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each engine binds to the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_LOGS": "-torch._library",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
