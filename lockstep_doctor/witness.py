"""Plain `transformers` in several types, on one network: a layer has weights of another one while it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.hf import load, read_type
from lockstep_doctor.modules import ModuleTap, make_in, read_plainly


def open_witnesses(folder: Path, device: str, *dtypes: torch.dtype) -> list[ModuleTap]:
    """Opens a folder once; returns a tap for each type of weights and activations.

    Memory: the weights in the type of their file, and in another one those of the largest layer and of all that is
    outside of layers. Buffers are made in fp32.
    """
    saved = read_type(folder)
    model = load(folder, torch.float32, "cpu")
    kept = model._keep_in_fp32_modules_strict if saved.itemsize < torch.float32.itemsize else ()
    for name, weight in model.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(saved)
    experts = model.config._experts_implementation
    model.to(device)
    return [ModuleTap(model, f"hf in {dtype}", read=partial(_read, dtype, experts)) for dtype in dtypes]


def find_blocks(model: nn.Module) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Returns what is cast together, by the module that computes it: each layer, and all that is outside of layers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = dict.fromkeys(layer for one in lists for layer in one)
    nested = {part for layer in layers for part in layer.modules() if part is not layer}
    outer = [layer for layer in layers if layer not in nested]
    inside = {weight for layer in outer for weight in layer.parameters()}
    rest = [weight for weight in model.parameters() if weight not in inside]
    return [(model, rest), *((layer, list(layer.parameters())) for layer in outer)]


class _Cast:
    """The weights of a block, cast for as long as it computes."""

    def __init__(self, weights: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype
        self._kept: list[Tensor] = []

    def begin(self, *_: Any) -> None:
        self._kept = [weight.data for weight in self._weights]
        for weight in self._weights:
            weight.data = weight.data.to(self._dtype)

    def end(self, *_: Any) -> None:
        for weight, data in zip(self._weights, self._kept, strict=True):
            weight.data = data
        self._kept = []


@contextmanager
def cast_by_block(model: nn.Module, dtype: torch.dtype, beside: Sequence[str] = ()) -> Iterator[None]:
    """Casts the weights of each block while it computes, but those of modules `beside`."""
    left = {weight for name, weight in model.named_parameters() if any(part in name for part in beside)}
    with ExitStack() as hooks:
        for module, weights in find_blocks(model):
            cast = _Cast([weight for weight in weights if weight not in left], dtype)
            hooks.callback(module.register_forward_pre_hook(cast.begin).remove)
            hooks.callback(module.register_forward_hook(cast.end, always_call=True).remove)
        yield


def _read(dtype: torch.dtype, experts: str, model: Any, tokens_T: Tensor) -> Tensor:
    """Reads a sequence; torch has no grouped products in float64."""
    model.set_experts_implementation("eager" if dtype == torch.float64 else experts)
    beside = model._keep_in_fp32_modules_strict if dtype.itemsize < 4 else ()
    with make_in(dtype), cast_by_block(model, dtype, beside):
        return read_plainly(model, tokens_T)
