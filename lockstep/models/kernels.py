"""The kernels of attention, which compute the products that a layout of `models.attention` asks
for.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

_is_told = "enable_gqa" in inspect.signature(varlen_attn).parameters
_flash = partial(varlen_attn, enable_gqa=True) if _is_told else varlen_attn
"""torch 2.11 takes fewer heads of keys than of queries without that argument."""


class Kernel(ABC):
    """The products of attention, over heads-first tensors [rows, heads, tokens, size]."""

    @abstractmethod
    def causal(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of each row's last tokens to those before them.

        Returns [rows · tokens, heads, size].

        Args:
            query: Queries of the last tokens; there are no queries for a multiple of 128 tokens
                before them.
        """

    @abstractmethod
    def mask(self, seen: Tensor) -> Tensor:
        """The mask that `newest` takes, [rows, …, keys], from the keys that each token sees, bool
        [rows, keys].
        """

    @abstractmethod
    def newest(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        """Attention of a token per row, [rows, heads, size], to keys that it sees.

        Returns the same shape.
        """


class Fused(Kernel):
    """PyTorch's own kernels, which sum in an order that depends on the number of queries and
    keys.
    """

    def causal(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        mask = mask_newest(query.shape[2], key.shape[2], window, query.device)
        return attend(query, key, value, mask, scaling).transpose(1, 2).flatten(0, 1)

    def mask(self, seen: Tensor) -> Tensor:
        return seen[:, None, None]

    def newest(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        return attend(query[:, :, None], key, value, mask, scaling)[:, :, 0]


class Varlen(Fused):
    """`Fused`, but whole sequences are not padded: PyTorch's flash attention takes packed
    sequences, in bf16.
    """

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
        """Causal attention of packed sequences. Returns [1, N, heads, size].

        Args:
            query: Queries, keys and values, heads first: [1, heads, N, size].
            bounds: Bounds of the sequences (cu_seqlens), from 0 to N, int32.
            longest: An upper bound on the tokens of a sequence.
        """
        q, k, v = (x[0].transpose(0, 1) for x in cast_as_autocast(query, key, value))
        seen = (
            -1 if window is None else window - 1,
            0,
        )  # tokens that each sees before and after itself
        out = _flash(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=seen)
        assert isinstance(out, Tensor), "nothing else is asked for"
        return out[None]


def takes_heads(size: int) -> bool:
    """True if flash attention takes heads of this size."""
    return size % 8 == 0 and size <= 256


FUSED = Fused()
VARLEN = Varlen()


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """PyTorch's attention of tensors [rows, heads, tokens, size]; several heads of queries may
    share one of keys.

    On a GPU in fp32, shared heads of keys are repeated: only PyTorch's math kernel would take them
    as they are, which keeps a number for each pair of tokens.

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
    """Casts tensors as autocast does for PyTorch's attention; custom ops and other functions would
    get them uncast.
    """
    kind = tensors[0].device.type
    enabled = torch.is_autocast_enabled(kind)
    return (tensor.to(torch.get_autocast_dtype(kind)) if enabled else tensor for tensor in tensors)


def mask_newest(new: int, known: int, window: int | None, device: torch.device) -> Tensor | None:
    """Mask of the `known` tokens that the newest `new` of them see, bool [new, known]; None: a
    plain causal one.
    """
    if new == known and (window is None or window >= known):
        return None
    seen = torch.ones(new, known, dtype=torch.bool, device=device).tril(known - new)
    if window is None:
        return seen
    return seen.triu(known - new + 1 - window)
