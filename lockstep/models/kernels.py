"""Attention kernels: they compute the products of a layout of `models.attention`."""

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
"""torch 2.11 accepts fewer key heads than query heads without that argument."""


_QUERIES = 256
"""Queries per product after a shared prefix: PyTorch computes all products under a mask."""


class AttentionKernel(ABC):
    """Products of attention, over heads-first tensors [rows, heads, tokens, size]."""

    @abstractmethod
    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of each row's last tokens to those before them.

        Returns [rows · tokens, heads, size].

        Args:
            query: Queries of the last tokens.
        """

    @abstractmethod
    def build_mask(self, seen: Tensor) -> Tensor:
        """Converts each row's seen keys, bool [rows, keys], to `attend_newest`'s mask [rows, …,
        keys].
        """

    @abstractmethod
    def attend_newest(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        """Attention of one token per row [rows, heads, size] to the keys that it sees.

        Returns the same shape.
        """


class FusedKernel(AttentionKernel):
    """PyTorch's kernels; the summation order depends on the number of queries and keys."""

    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        known = key.shape[2]
        before = known - query.shape[2]
        block = _QUERIES if before else known
        parts = list[Tensor]()
        for start in range(before, known, block):
            stop = min(start + block, known)
            q = query[:, :, start - before : stop - before]
            mask = mask_newest(stop - start, stop, window, query.device)
            parts.append(
                run_torch_attention(q, key[:, :, :stop], value[:, :, :stop], mask, scaling)
            )
        out = parts[0]
        if len(parts) > 1:
            out = torch.cat(parts, 2)
        return out.transpose(1, 2).flatten(0, 1)

    def build_mask(self, seen: Tensor) -> Tensor:
        return seen[:, None, None]

    def attend_newest(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
    ) -> Tensor:
        return run_torch_attention(query[:, :, None], key, value, mask, scaling)[:, :, 0]


class VarlenKernel(FusedKernel):
    """`FusedKernel` without padding: PyTorch's flash attention takes packed sequences, in bf16."""

    def supports_heads(self, query: Tensor, value: Tensor) -> bool:
        """True if `attend_sequences` supports these head sizes."""
        return query.shape[-1] == value.shape[-1] and takes_heads(query.shape[-1])

    def attend_sequences(
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
        # tokens that each sees before and after itself
        seen = (-1 if window is None else window - 1, 0)
        out = _flash(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=seen)
        assert isinstance(out, Tensor), "nothing else is asked for"
        return out[None]


def takes_heads(size: int) -> bool:
    """True if flash attention supports this head size."""
    return size % 8 == 0 and size <= 256


FUSED = FusedKernel()
VARLEN = VarlenKernel()


def run_torch_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """PyTorch's attention over [rows, heads, tokens, size]; query heads may share a key head.

    On a GPU in fp32, shared heads of keys are repeated: only PyTorch's math kernel takes them as
    they are, and it keeps a number for each pair of tokens.

    Args:
        mask: Keys that queries see; None: causal.
    """
    if query.is_cuda and next(cast_as_autocast(query)).dtype == torch.float32:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    shared = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=shared
    )


def cast_as_autocast(*tensors: Tensor) -> Iterator[Tensor]:
    """Casts tensors as autocast does for PyTorch's attention; custom ops would get them uncast."""
    kind = tensors[0].device.type
    enabled = torch.is_autocast_enabled(kind)
    return (tensor.to(torch.get_autocast_dtype(kind)) if enabled else tensor for tensor in tensors)


def mask_newest(new: int, known: int, window: int | None, device: torch.device) -> Tensor | None:
    """Causal mask of `known` tokens for the newest `new`, bool [new, known]; None: plain causal."""
    if new == known and (window is None or window >= known):
        return None
    seen = torch.ones(new, known, dtype=torch.bool, device=device).tril(known - new)
    if window is None:
        return seen
    return seen.triu(known - new + 1 - window)
