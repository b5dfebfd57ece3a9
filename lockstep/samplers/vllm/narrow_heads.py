"""Zero-padding of heads below 32, for which vLLM's CPU attention has no kernel.

Zeros change no dot product, the scale is that of the true width, and rotary positions are applied
before, so results are the same. Only the KV cache grows.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from vllm.model_executor.layers.attention.attention import Attention

NARROWEST = 32


def widen_narrow_heads() -> None:
    """Makes vLLM's attention layers accept any head width, in this process."""
    plain_init = Attention.__init__
    plain_forward = Attention.forward

    @wraps(plain_init)
    def init(self: Any, num_heads: int, head_size: int, *args: Any, **keywords: Any) -> None:
        plain_init(self, num_heads, max(head_size, NARROWEST), *args, **keywords)
        self.true_head_size = head_size

    @wraps(plain_forward)
    def forward(
        self: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **keywords: Any
    ) -> Tensor:
        if self.true_head_size == self.head_size:
            return plain_forward(self, query, key, value, *args, **keywords)
        heads = ((query, self.num_heads), (key, self.num_kv_heads), (value, self.num_kv_heads))
        padding = (0, self.head_size - self.true_head_size)
        query, key, value = (
            F.pad(x.view(-1, count, self.true_head_size), padding).flatten(1) for x, count in heads
        )
        output = plain_forward(self, query, key, value, *args, **keywords)
        output_NHD = output.view(-1, self.num_heads, self.head_size)
        return output_NHD[..., : self.true_head_size].flatten(1)

    Attention.__init__ = init
    Attention.forward = forward
