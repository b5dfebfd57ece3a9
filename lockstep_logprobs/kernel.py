"""Passes over blocks of rows, each one node of a compiled graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_NAMESPACE = "lockstep_logprobs"


def kernel(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Registers a function as a custom op that compiled code calls; without it, dynamo would unroll the loop inside.

    Code that is not compiled calls the function itself, so profilers and dispatch modes see what it does.

    Args:
        schema: Parameters and results as torch writes them, `"(Tensor x, int k) -> Tensor"`.
        fake: The same parameters; empty tensors like the results.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__.strip("_")
        torch.library.custom_op(f"{_NAMESPACE}::{name}", function, mutates_args=(), schema=schema).register_fake(fake)
        op = getattr(getattr(torch.ops, _NAMESPACE), name).default

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return op(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

        return call

    return register
