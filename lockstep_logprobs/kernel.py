"""Passes over blocks of rows, each one node of a compiled graph, and one Triton kernel where
tensors are on a GPU.
"""

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


def kernel(
    schema: str, fake: Callable[..., Any], fused: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Registers a function as a custom op that compiled code calls; without it, dynamo would unroll
    the loop inside.

    Code that is not compiled calls the function itself, so profilers and dispatch modes see what it
    does.

    Args:
        schema: Parameters and results as torch writes them, `"(Tensor x, int k) -> Tensor"`.
        fake: Function of the same parameters that returns empty tensors of the results' shapes and
            types.
        fused: A module of `fused` with a function of the same name and parameters; see
            `runs_fused`.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__.strip("_")
        chosen = function if fused is None else _prefer(fused, name, function)
        torch.library.custom_op(
            f"{_NAMESPACE}::{name}", chosen, mutates_args=(), schema=schema
        ).register_fake(fake)
        op = getattr(getattr(torch.ops, _NAMESPACE), name).default

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return op(*args, **kwargs)
            return chosen(*args, **kwargs)

        return call

    return register


def _prefer(module: str, name: str, function: Callable[P, R]) -> Callable[P, R]:
    """Wraps `function` to call the one of the same name in a module of `fused` where `runs_fused`
    allows it.
    """

    @functools.wraps(function)
    def choose(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        assert isinstance(first, Tensor)
        if not runs_fused(first):
            return function(*args, **kwargs)
        return load_fused(module, name)(*args, **kwargs)

    return choose


def runs_fused(x: Tensor) -> bool:
    """Tells whether Triton's kernels take a tensor: one with memory, on a GPU or under Triton's
    interpreter.
    """
    return (
        (x.is_cuda or _interprets()) and type(x) in (Tensor, torch.nn.Parameter) and _has_triton()
    )


def load_fused(module: str, name: str) -> Callable[..., Any]:
    """A function of a module of `fused`, which imports Triton."""
    return vars(importlib.import_module(f"{_NAMESPACE}.fused.{module}"))[name]


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
