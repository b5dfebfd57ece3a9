"""What vLLM's processes find in their environment; read by them when they start, so it is set before."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from multiprocessing import resource_tracker

OWNER = "LOCKSTEP_SAMPLER_PID"
"""Names the process for which vLLM runs."""

_SOCKETS = "VLLM_RPC_BASE_PATH"


def clear() -> None:
    """Takes away the sockets that vLLM's processes leave behind."""
    shutil.rmtree(os.environ[_SOCKETS], ignore_errors=True)


def prepare(threads: int) -> None:
    """Sets what Lockstep needs, and, where the user has not said otherwise, that vLLM stays quiet and at home.

    Args:
        threads: Of the worker, on a CPU.
    """
    os.setsid()  # Ctrl-C in a terminal is for who owns the engine, and would end it in the middle of a step
    multiprocessing.current_process().daemon = False  # a daemon may have no children; vLLM's end by `OWNER`
    # vLLM leaves shared memory behind. A tracker of its own clears that away, without warnings in our program's output.
    resource_tracker._resource_tracker._fd = None  # pyright: ignore[reportAttributeAccessIssue]
    os.environ |= {OWNER: str(os.getpid()), _SOCKETS: tempfile.mkdtemp(prefix="lockstep-vllm-")}
    for name, value in {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each engine binds to the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_LOGS": "-torch._library",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
