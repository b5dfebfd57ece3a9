"""The GPU that is not there: it computes as the CPU does, refuses what CUDA refuses, and notes what
is waited for.
"""

from __future__ import annotations

import pytest
import torch
from pretend_gpu import GPU, DeviceMixError, pretend_gpu
from torch import Tensor


def test_pretend_gpu_tensors_report_cuda_device_and_keep_values() -> None:
    with pretend_gpu():
        for made in (
            torch.arange(3, device="cuda"),
            torch.tensor([0, 1, 2], device="cuda"),
            torch.arange(3).to("cuda"),
        ):
            assert made.device == GPU
            assert made.is_cuda
            assert made.cpu().device.type == "cpu"
            assert made.tolist() == [0, 1, 2]
        assert torch.zeros_like(made, device="cpu").device.type == "cpu"


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: there + here,
        lambda here, there: there.index_select(0, here),
        lambda here, there: here[there],
        lambda here, there: torch.cat([here, there]),
    ],
)
def test_a_mix_of_devices_is_refused(mix: object) -> None:
    assert callable(mix)
    with pretend_gpu(), pytest.raises(DeviceMixError):
        mix(torch.arange(3), torch.arange(3, device="cuda"))


def test_pretend_gpu_records_every_host_wait() -> None:
    with pretend_gpu() as record:
        x = torch.arange(4.0).to("cuda")
        assert (record.count("slow copy"), record.count("sync")) == (1, 0)
        for wait in (
            float,
            Tensor.tolist,
            Tensor.nonzero,
            Tensor.cpu,
            lambda x: x[x > 1.0],
            lambda x: bool((x > 0).any()),
        ):
            before = record.count("sync")
            wait(x.sum() if wait is float else x)
            assert record.count("sync") == before + 1
