"""Plain `transformers` in several types, on one network: at any time the weights of one block are in another type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.hf import load
from lockstep_doctor.modules import ModuleTap, read_plainly


def open_witnesses(folder: Path, device: str, *dtypes: torch.dtype) -> list[ModuleTap]:
    """Opens a folder once; returns a tap for each type of weights and activations.

    Memory: the weights in the type of their file, and those of the largest block in another one.
    """
    model = load(folder, "auto", device)
    kept = model.config._experts_implementation
    return [ModuleTap(model, f"hf in {dtype}", read=partial(_read, dtype, kept)) for dtype in dtypes]


def find_blocks(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yields what is cast together: each layer, and each module outside of layers that has parameters, with them."""
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    inside = {part for layer in layers for part in layer.modules() if part is not layer}
    for module in model.modules():
        own = list(module.parameters(recurse=module in layers))
        if own and module not in inside:
            yield module, own


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
    with cast_by_block(model, dtype, beside):
        return read_plainly(model, tokens_T)
