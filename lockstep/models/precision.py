"""The types of a computation as PyTorch has them."""

from __future__ import annotations

import torch

from lockstep.config import DType

TORCH_TYPES: dict[DType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
OVERFLOW = "numbers above 65,504 overflow in fp16; set learner.dtype=bf16"
"""The cure for numbers that are not finite, in fp16."""


def autocast(device: torch.device, dtype: DType) -> torch.autocast:
    """The autocast context of a type: weights are cast for each product; masters, sums and norms
    stay in fp32.
    """
    return torch.autocast(
        device.type, TORCH_TYPES[dtype], enabled=TORCH_TYPES[dtype] != torch.float32
    )
