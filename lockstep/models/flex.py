"""Unpadded attention with caps or sinks, on GPUs: PyTorch's FlexAttention over packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.utils.weak import WeakIdKeyDictionary

from lockstep.models.exact.attention import Blockwise
from lockstep.models.kernels import cast_as_autocast

_masks = WeakIdKeyDictionary()
"""Masks by bounds of sequences and window, shared by all layers of a pass."""


@dataclass(frozen=True)
class Flex(Blockwise):
    """`Blockwise` attention without padding of whole sequences; decoding is that of `Blockwise`."""

    def takes(self, query: Tensor, value: Tensor) -> bool:
        """True if `sequences` computes heads of such sizes."""
        return query.shape[-1] == value.shape[-1] and 16 <= query.shape[-1] <= 256

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
        """See `kernels.Varlen`. Sinks are applied after the softmax: out · exp(lse) / (exp(lse) + exp(sink))."""
        q, k, v = cast_as_autocast(query, key, value)
        mask, softcap = _find_mask(bounds, q.shape[2], window), self.softcap
        cap = None if softcap is None else lambda score, *_: softcap * torch.tanh(score / softcap)
        out, aux = _choose_attention(q.is_cuda)(
            q, k, v, cap, mask, scaling, enable_gqa=True, return_aux=AuxRequest(lse=self.sinks is not None)
        )
        if self.sinks is not None:
            out = (out * torch.sigmoid(aux.lse - self.sinks.float()[:, None])[..., None]).to(q.dtype)
        return out.transpose(1, 2)


def _find_mask(bounds: Tensor, tokens: int, window: int | None) -> BlockMask:
    """The mask by which each token sees those before it in its sequence, within a window."""
    known = cast("dict[int | None, BlockMask]", _masks.setdefault(bounds, {}))
    if window not in known:
        places = torch.arange(tokens, dtype=bounds.dtype, device=bounds.device)
        sequence_N = torch.searchsorted(bounds[1:].contiguous(), places, right=True)

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = (query >= key) & (sequence_N[query] == sequence_N[key])
            return seen if window is None else seen & (query - key < window)

        known[window] = create_block_mask(sees, None, None, tokens, tokens, bounds.device)
    return known[window]


@cache
def _choose_attention(on_gpu: bool) -> Callable[..., tuple[Tensor, Any]]:
    """FlexAttention, compiled on a GPU: for the sizes of the first batch, then once more for all sizes.

    `dynamic=True` would make the cap a symbolic number, for which torch 2.11 has no backward pass.
    """
    return cast("Any", torch.compile(flex_attention) if on_gpu else flex_attention)
