"""Passes over blocks of rows: one node of a compiled graph, or one Triton kernel on a GPU."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_NAMESPACE = "lockstep_logprobs"


def register_kernel(
    schema: str, fake: Callable[..., Any], fused: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Registers a function as a custom op for compiled code.

    Without it, dynamo would unroll the loop inside. Code that is not compiled calls the function
    itself, so profilers and dispatch modes see its operations.

    Args:
        schema: Parameters and results in torch's notation, `"(Tensor x, int k) -> Tensor"`.
        fake: Function with the same parameters that returns empty tensors of the results' shapes
            and types.
        fused: Module of `fused` with a function of the same name and parameters; see `runs_fused`.
    """

    def register_function(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__.strip("_")
        chosen = function if fused is None else _prefer_fused(fused, name, function)
        torch.library.custom_op(
            f"{_NAMESPACE}::{name}", chosen, mutates_args=(), schema=schema
        ).register_fake(fake)
        op = getattr(getattr(torch.ops, _NAMESPACE), name).default

        @functools.wraps(function)
        def call_or_trace(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return op(*args, **kwargs)
            return chosen(*args, **kwargs)

        return call_or_trace

    return register_function


def _prefer_fused(module: str, name: str, function: Callable[P, R]) -> Callable[P, R]:
    """Wraps `function` to call its namesake in a module of `fused` if `runs_fused` allows it."""

    @functools.wraps(function)
    def call_chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, Tensor)
        if not runs_fused(first):
            return function(*args, **kwargs)
        return load_fused(module, name)(*args, **kwargs)

    return call_chosen


def runs_fused(x: Tensor) -> bool:
    """True if Triton's kernels accept a tensor: with memory, on a GPU or in the interpreter."""
    return (
        (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
        and type(x) in (Tensor, torch.nn.Parameter)
        and _has_triton()
    )


def load_fused(module: str, name: str) -> Callable[..., Any]:
    """A function in a module of `fused`; imports Triton."""
    return vars(importlib.import_module(f"{_NAMESPACE}.fused.{module}"))[name]


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
