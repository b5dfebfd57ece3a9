"""The process of one run of a sweep: `lockstep train`, which saves and stops when the sweep's process is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from lockstep.cli import main

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def end_with(parent: int) -> None:
    """Has the system send SIGTERM to this process once its parent has ended; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.exit(main(["train", sys.argv[2]]))
