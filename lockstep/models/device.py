"""Devices that models compute on."""

from __future__ import annotations

import os
from typing import assert_never

import torch
from torch import nn
from transformers import PreTrainedModel

from lockstep.config import Computation, Device
from lockstep.core.errors import InputError
from lockstep.models.exact.model import make_exact
from lockstep.models.load import load_causal_lm
from lockstep.models.lora import add_adapters
from lockstep.models.open_kernels import open_kernels

_OVERRIDE = "NVIDIA_TF32_OVERRIDE"


def resolve_device(device: Device) -> torch.device:
    """Returns the device; `auto` is the GPU if there is one.

    For a GPU, TF32 is turned off: see `keep_fp32`.
    """
    match device:
        case "auto":
            if torch.cuda.is_available():
                return _open_gpu()
            return torch.device("cpu")
        case "cuda":
            if not torch.cuda.is_available():
                raise InputError(
                    "learner.device is cuda, but torch sees no GPU here; use learner.device=cpu "
                    "or auto"
                )
            return _open_gpu()
        case "cpu":
            return torch.device("cpu")
        case _:
            assert_never(device)


def empty_cache(device: torch.device) -> None:
    """Releases torch's cached GPU memory, so that other processes can use it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def keep_fp32() -> str:
    """Makes fp32 products and convolutions run in fp32 on GPUs, never TF32; returns the settings.

    Raises:
        InputError: If an environment variable overrides it.
    """
    if os.environ.get(_OVERRIDE) == "1":
        raise InputError(
            f"{_OVERRIDE}=1 makes CUDA compute fp32 products in TF32, with 10 instead of 23 "
            "mantissa bits; unset it, or use learner.dtype=bf16 for speed"
        )
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    products = torch.get_float32_matmul_precision()
    return (
        f"fp32 products: {products} precision; TF32 is "
        f"{'on' if torch.backends.cuda.matmul.allow_tf32 else 'off'}"
    )


def _open_gpu() -> torch.device:
    keep_fp32()
    return torch.device("cuda")


def load_on_device(folder: str, computation: Computation) -> PreTrainedModel:
    """The causal language model of a folder, with the device and kernels of a computation."""
    lm = load_causal_lm(folder)
    if computation.adapters_apart is not None:
        add_adapters(lm, computation.adapters_apart)
    device = resolve_device(computation.device)
    nn.Module.to(lm, device)  # in place; its own `to` is typed for wrappers
    if computation.exact:
        make_exact(lm)
    else:
        open_kernels(lm, device, computation.dtype)
    return lm
