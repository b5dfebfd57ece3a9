"""PyTorch's types and autocast for each computation type."""

from __future__ import annotations

import torch

from lockstep.config import DType

TORCH_TYPES: dict[DType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
OVERFLOW = "numbers above 65,504 overflow in fp16; set learner.dtype=bf16"
"""Advice for non-finite numbers in fp16, for messages."""


def open_autocast(device: torch.device, dtype: DType) -> torch.autocast:
    """Autocast for a type: casts weights for each product; masters, sums and norms stay fp32."""
    return torch.autocast(
        device.type, TORCH_TYPES[dtype], enabled=TORCH_TYPES[dtype] != torch.float32
    )
