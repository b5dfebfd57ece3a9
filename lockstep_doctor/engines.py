"""Engines that can be looked into: each has its tap beside it, and is found by entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import torch

from lockstep_doctor.tap import Tap

GROUP = "lockstep_doctor.taps"
"""Group of entry points: the name of an engine, and its `OpenTap`."""


@dataclass(frozen=True)
class EngineOptions:
    """The way in which an engine is to compute.

    Attributes:
        dtype: Of weights and activations.
        parallel: Sizes of a layout, such as `{"tp": 2}`; empty: one process.
        neighbors: Sequences before it in the row, of an engine that packs; it is the last.
        prompt: So many tokens are read by prefill, the others one by one, by decoding; None: all by prefill.
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


def find_engines() -> list[str]:
    """Returns the names of all engines that are installed."""
    return sorted({one.name for one in entry_points(group=GROUP)})


def find_engine(name: str) -> OpenTap:
    """Returns how an engine is opened.

    Raises:
        ValueError: No package has an engine of that name.
    """
    found = [one for one in entry_points(group=GROUP) if one.name == name]
    if not found:
        raise ValueError(f"no engine is called {name!r}; there are {', '.join(find_engines())}")
    return cast(OpenTap, found[0].load())
