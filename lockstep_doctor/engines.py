"""Engines that can be looked into: each has a tap, and is found by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from lockstep_doctor.tap import Tap

ENGINES: Mapping[str, str] = {
    "hf": "lockstep_doctor.hf:open_hf",
    "megatron": "lockstep_doctor.taps.learners:open_megatron",
    "torch": "lockstep_doctor.taps.learners:open_torch",
    "torch_sampler": "lockstep_doctor.taps.torch_sampler:open_sampler",
    "vllm": "lockstep_doctor.taps.vllm.tap:open_vllm",
}
"""The place of each engine's `OpenTap`, `package.module:function`, by the engine's name."""


@dataclass(frozen=True)
class EngineOptions:
    """The way in which an engine is to compute.

    Attributes:
        dtype: Of weights and activations.
        parallel: Sizes of a layout, such as `{"tp": 2}`; empty: one process.
        neighbors: Sequences before it in the row, of an engine that packs; it is the last.
        prompt: So many tokens are read by prefill, the others one by one, by decoding; None: all by
            prefill.
        settings: Options of the engine alone, by its names.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    parallel: Mapping[str, int] = field(default_factory=dict)
    neighbors: int = 0
    prompt: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


OpenTap = Callable[[Path, EngineOptions], AbstractContextManager[Tap]]
"""Loads a model into an engine, and closes it at the end of the block."""


def find_engine(name: str) -> OpenTap:
    """Returns how an engine is opened.

    Args:
        name: One of `ENGINES`, or the place of an `OpenTap` of your own, such as
            `my_package.my_tap:open_engine`.

    Raises:
        ValueError: Unknown name.
    """
    module, _, function = ENGINES.get(name, name).partition(":")
    if not function:
        raise ValueError(
            f"unknown engine {name!r}; choose one of {', '.join(ENGINES)}, or "
            "package.module:function"
        )
    return cast(OpenTap, getattr(import_module(module), function))
