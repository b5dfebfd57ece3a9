"""Registry of engines with a tap."""

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
"""`OpenTap` of each engine, as `package.module:function`."""


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine.

    Attributes:
        dtype: Type of weights and activations.
        parallel: Parallel sizes, such as `{"tp": 2}`; empty: one process.
        neighbors: Number of other sequences packed before the one that is read.
        prompt: Number of tokens to prefill; the others are decoded one by one. None: prefill all.
        settings: Engine-specific options.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    parallel: Mapping[str, int] = field(default_factory=dict)
    neighbors: int = 0
    prompt: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


OpenTap = Callable[[Path, EngineOptions], AbstractContextManager[Tap]]
"""Context manager that loads a model into an engine and closes it at the end."""


def find_engine(name: str) -> OpenTap:
    """Returns the function that opens an engine.

    Args:
        name: One of `ENGINES`, or your own `OpenTap`, such as
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
