"""Keeps routers in fp32 under autocast if the model computes them in fp32."""

from __future__ import annotations

import re
from functools import cache
from inspect import getsource
from types import MethodType
from typing import Any

import torch
from torch import nn

_IN_FP32 = re.compile(
    r"\b(?:F|functional)\.linear\((?:[^()]|\([^()]*\))*\bself\.[\w.]+\.(?:float\(\)|(?:type|to)\(torch\.float32\))"
)


def keep_in_fp32(model: nn.Module) -> None:
    """Disables autocast for modules whose `forward` casts their weight to fp32 for a product."""
    for module in model.modules():
        if _casts_to_fp32(type(module)):
            module.forward = MethodType(_forward_in_fp32, module)


@cache
def _casts_to_fp32(kind: type[nn.Module]) -> bool:
    """True for a class of `transformers` whose `forward` casts its weight to fp32 for a product."""
    if not kind.__module__.startswith("transformers.models."):
        return False
    try:
        return _IN_FP32.search(getsource(kind.forward)) is not None
    except OSError:
        return False  # source unavailable


def _forward_in_fp32(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the module without autocast."""
    with torch.autocast(next(module.parameters()).device.type, enabled=False):
        return type(module).forward(module, *args, **kwargs)
