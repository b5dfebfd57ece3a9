"""Devices that models compute on."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import nn
from transformers import PreTrainedModel

from lockstep.config import Computation, Device
from lockstep.errors import InputError
from lockstep.models.exact.model import make_exact
from lockstep.models.load import load_causal_lm
from lockstep.models.lora import adapt
from lockstep.models.open_kernels import open_kernels


def resolve_device(device: Device) -> torch.device:
    """`auto` is the GPU where there is one."""
    match device:
        case "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        case "cuda":
            if not torch.cuda.is_available():
                raise InputError("learner.device is cuda, but torch sees no GPU here; use learner.device=cpu or auto")
            return torch.device("cuda")
        case "cpu":
            return torch.device("cpu")
        case _:
            assert_never(device)


def load_on_device(folder: str, computation: Computation) -> PreTrainedModel:
    """The causal language model of a folder, on the device and by the kernels of a computation."""
    lm = load_causal_lm(folder)
    if computation.adapters_apart is not None:
        adapt(lm, computation.adapters_apart)
    device = resolve_device(computation.device)
    nn.Module.to(lm, device)  # in place; its own `to` is typed for wrappers
    if computation.exact:
        make_exact(lm)
    else:
        open_kernels(lm, device, computation.is_bf16)
    return lm
