"""A machine with GPUs, as far as a dry run looks at one: torch says that they are there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

MEMORY = 85_000_000_000
"""Bytes of a card that is sold with 80 GB."""


def show_gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    """Lets torch say that this machine has so many GPUs; none: that it has none.

    The self-check of a model computes, so it alone stays on the CPU.
    """
    for name, answer in {
        "is_available": count > 0,
        "device_count": count,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_properties": SimpleNamespace(total_memory=MEMORY),
    }.items():
        patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    patch.setattr("lockstep.cluster.self_check.resolve_device", lambda _: torch.device("cpu"))
