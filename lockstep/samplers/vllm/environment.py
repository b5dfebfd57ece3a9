"""Environment variables for vLLM; it reads them when it is imported, so they are set before."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import resource_tracker

from lockstep.process_defaults import stay_offline


def prepare() -> None:
    """Sets what Lockstep needs, and, unless the user has set it otherwise, that vLLM stays quiet and at home.

    On a CPU vLLM takes as many threads as OMP_NUM_THREADS says, which a worker finds set to its share.
    """
    stay_offline()
    # Ctrl-C in a terminal is for the engine's owner, and would end tensor-parallel workers in their work.
    if os.getpgrp() != os.getpid():
        os.setsid()
    multiprocessing.current_process().daemon = False  # a daemon may have no children, and such workers are children
    # vLLM leaves shared memory behind. A separate tracker clears that away, without warnings in our program's output.
    resource_tracker._resource_tracker._fd = None  # pyright: ignore[reportAttributeAccessIssue]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # another process would import all of this once more
    for name, value in {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each engine binds to the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCH_LOGS": "-torch._library",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
