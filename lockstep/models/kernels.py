"""The kernels of attention: what computes the products that a layout of `models.attention` asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

_is_told = "enable_gqa" in inspect.signature(varlen_attn).parameters
_flash = partial(varlen_attn, enable_gqa=True) if _is_told else varlen_attn
"""torch 2.11 takes fewer heads of keys than of queries without being told."""


class Kernel(Protocol):
    """The products of attention, over heads-first tensors [rows, heads, tokens, size]."""

    def causal(self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        """Attention of each row's last tokens to those before them. Returns [rows · tokens, heads, size].

        Args:
            query: Of the last tokens, all but a multiple of 128 of those that have keys.
        """
        ...

    def mask(self, seen: Tensor) -> Tensor:
        """The mask of `newest` for the keys that tokens see, bool [rows, keys]; its first and last sizes are these."""
        ...

    def newest(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
        """Attention of a token per row, [rows, heads, size], to keys that it sees. Returns the same shape."""
        ...


class Fused:
    """PyTorch's own kernels, which sum in an order that depends on the number of queries and keys."""

    def causal(self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None) -> Tensor:
        mask = mask_newest(query.shape[2], key.shape[2], window, query.device)
        return attend(query, key, value, mask, scaling).transpose(1, 2).flatten(0, 1)

    def mask(self, seen: Tensor) -> Tensor:
        return seen[:, None, None]

    def newest(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
        return attend(query[:, :, None], key, value, mask, scaling)[:, :, 0]


class Varlen(Fused):
    """The same, but whole sequences are not padded: PyTorch's flash attention takes them end to end, in bf16."""

    def takes(self, query: Tensor, value: Tensor) -> bool:
        """True if `sequences` computes heads of such sizes."""
        return query.shape[-1] == value.shape[-1] and takes_heads(query.shape[-1])

    def sequences(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds: Tensor,
        longest: int,
        scaling: float,
        window: int | None,
    ) -> Tensor:
        """Causal attention of sequences that lie end to end. Returns [1, N, heads, size].

        Args:
            query: Queries, keys and values, heads first: [1, heads, N, size].
            bounds: Places between sequences, from 0 to N, int32.
            longest: Tokens of the longest, at least.
        """
        q, k, v = (x[0].transpose(0, 1) for x in cast_as_autocast(query, key, value))
        seen = (-1 if window is None else window - 1, 0)  # tokens before each, and behind it
        out = _flash(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=seen)
        assert isinstance(out, Tensor), "nothing else is asked for"
        return out[None]


def takes_heads(size: int) -> bool:
    """True if flash attention takes heads with so many numbers."""
    return size % 8 == 0 and size <= 256


FUSED = Fused()
VARLEN = Varlen()


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """PyTorch's attention of tensors [rows, heads, tokens, size]; several heads of queries may share one of keys.

    On a GPU in fp32 each head of queries is given its own: there only PyTorch's plainest kernel takes shared ones, and
    that keeps a number for each pair of tokens.

    Args:
        mask: Keys that queries see; None: a plain causal one.
    """
    if query.is_cuda and next(cast_as_autocast(query)).dtype == torch.float32:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    shared = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=shared
    )


def cast_as_autocast(*tensors: Tensor) -> Iterator[Tensor]:
    """Tensors in the type in which autocast hands them to PyTorch's attention; other operations it leaves alone."""
    kind = tensors[0].device.type
    enabled = torch.is_autocast_enabled(kind)
    return (tensor.to(torch.get_autocast_dtype(kind)) if enabled else tensor for tensor in tensors)


def mask_newest(new: int, known: int, window: int | None, device: torch.device) -> Tensor | None:
    """Mask of the `known` tokens that the newest `new` of them see, bool [new, known]; None: a plain causal one."""
    if new == known and (window is None or window >= known):
        return None
    seen = torch.ones(new, known, dtype=torch.bool, device=device).tril(known - new)
    return seen if window is None else seen.triu(known - new + 1 - window)
