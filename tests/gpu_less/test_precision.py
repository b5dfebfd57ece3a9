"""fp32 is fp32 on GPUs, too, even where a process had TF32 on before, and a run says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpus import show_gpus

from lockstep.config import Device
from lockstep.models.device import resolve_device


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    """Something else in the process has turned it on."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def uses_tf32() -> bool:
    return bool(torch.backends.cuda.matmul.allow_tf32) or torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_process_that_computes_on_a_gpu_uses_no_tf32(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 1)
    assert uses_tf32()
    assert resolve_device(device).type == "cuda"
    assert not uses_tf32()
