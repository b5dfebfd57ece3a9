"""Environment variables for vLLM; set before vLLM is imported, when it reads them."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import resource_tracker

from lockstep.system.process_defaults import stay_offline


def prepare_process() -> None:
    """Sets required variables and, unless the user set them, quiet and offline defaults.

    On a CPU, vLLM uses OMP_NUM_THREADS threads, which is set to the worker's share.
    """
    stay_offline()
    # Only the engine's owner handles Ctrl-C; otherwise it would kill tensor-parallel workers at
    # work.
    if os.getpgrp() != os.getpid():
        os.setsid()
    # daemons cannot have children, which tensor-parallel workers are
    multiprocessing.current_process().daemon = False
    # vLLM leaks shared memory. A separate resource tracker frees it, without warnings in our
    # program's output.
    resource_tracker._resource_tracker._fd = None  # pyright: ignore[reportAttributeAccessIssue]
    # another process would import all of this again
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise all engines bind to the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_LOGS": "-torch._library",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
