"""A pass of a Llama, Qwen2 or Qwen3 without its modules, for sampling: the same operations on the same weights.

Queries, keys and values are one product here, as are gate and up, if `join_maps` has placed their weights one after the
other in memory; the modules' weights are views of that memory, so a weight sync needs nothing more. Cosines and sines
come from a table. LoRA adapters are computed and added as their modules do it.

Letters: N tokens of a pass, M of them with logits, H heads of queries, G heads of keys, D size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lockstep.config import DType
from lockstep.models.attention import KernelLayout
from lockstep.models.exact.attention import Blockwise
from lockstep.models.exact.linear import linear, product, silu
from lockstep.models.exact.model import is_exact
from lockstep.models.exact.norm import rms_norm
from lockstep.models.families.registry import family_of
from lockstep.models.kernels import Kernel
from lockstep.models.lora import Adapted
from lockstep.models.open_kernels import kernel_of
from lockstep.models.precision import TORCH_TYPES
from lockstep_logprobs.kernel import runs_fused

_POSITIONS = 64
"""The table's length is a multiple of this, since the last cosines of a vector can round differently."""


_TRIED = (8, 16, 72, 264)
"""Numbers of rows for which `_is_one_product` compares products."""


@dataclass(frozen=True)
class _LowRank:
    """The adapter of one map of `_Linears`: its output is added to that map's columns."""

    start: int
    a: Tensor
    b: Tensor
    scaling: float

    def add_(self, out: Tensor, x: Tensor) -> None:
        out.narrow(-1, self.start, len(self.b)).add_(linear(linear(x, self.a), self.b).mul_(self.scaling))


@dataclass(frozen=True)
class _Linears:
    """A linear map, or several of the same input, multiplied one by one if a single product would round differently."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    adapters: tuple[_LowRank, ...]
    exact: bool

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.weights[0].dtype)
        multiply = product if self.exact else linear
        parts = [multiply(x, weight, bias) for weight, bias in zip(self.weights, self.biases, strict=True)]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        for adapter in self.adapters:
            adapter.add_(out, x)
        return out


@dataclass(frozen=True)
class _Norm:
    """An RMS norm that computes in fp32, as in `transformers`."""

    weight: Tensor
    eps: float
    exact: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.exact and runs_fused(x):
            return rms_norm(x, self.weight, self.eps)
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return self.weight * F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)


@dataclass(frozen=True)
class _Layer:
    """The maps and norms of one layer, before and after attention."""

    before: _Norm
    qkv: _Linears
    q_norm: _Norm | None
    k_norm: _Norm | None
    out: _Linears
    between: _Norm
    gate_up: _Linears
    down: _Linears
    window: int | None


class TokenStep:
    """A pass over the tokens of a layout.

    Args:
        lm: A model that `can_step`.
        dtype: Type of the products, as autocast has them.
    """

    def __init__(self, lm: PreTrainedModel, dtype: DType) -> None:
        self._lm = lm
        self._dtype: DType = dtype
        backbone: Any = lm.base_model
        attention = backbone.layers[0].self_attn
        self._size, self._scaling = int(attention.head_dim), float(attention.scaling)
        self._heads = attention.q_proj.out_features // self._size
        self._kernel: Kernel = Blockwise() if is_exact(lm) else kernel_of(lm)
        self._activation = silu if is_exact(lm) else F.silu
        self._rotary, self._embedding = backbone.rotary_emb, backbone.embed_tokens.weight
        self._cos_sin = torch.zeros(2, 0, self._size, device=lm.device)
        self._layers = [self._layer(layer) for layer in backbone.layers]
        self._norm, self._head = _norm(backbone.norm, is_exact(lm)), self._map(lm.get_output_embeddings())

    @torch.no_grad()
    def __call__(self, token_N: Tensor, position_N: Tensor, layout: KernelLayout, keep_M: Tensor) -> Tensor:
        """Logits [M, V] of the tokens with indices `keep_M`."""
        hidden = F.embedding(token_N, self._embedding)
        cos, sin = self._angles(position_N)
        # After its attention, the last layer computes only tokens with logits, if they are at most half.
        few = 2 * len(keep_M) <= len(token_N)
        for number, layer in enumerate(self._layers):
            q, k, v = self._project(layer, layer.before(hidden), cos, sin)
            out = layout.attend_by(self._kernel, number, q, k, v, self._scaling, layer.window).reshape(len(hidden), -1)
            if few and layer is self._layers[-1]:
                hidden, out = hidden.index_select(0, keep_M), out.index_select(0, keep_M)
            hidden = hidden + layer.out(out)
            gate, up = layer.gate_up(layer.between(hidden)).chunk(2, -1)
            hidden = hidden + layer.down(self._activation(gate).mul_(up))
        return self._head(self._norm(hidden if few else hidden.index_select(0, keep_M)))

    def _project(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [1, heads, N, D]."""
        all_NHD = layer.qkv(x).unflatten(-1, (-1, self._size))
        keys = (all_NHD.shape[1] + self._heads) // 2
        q_k = all_NHD[:, :keys]
        if layer.q_norm is not None and layer.k_norm is not None:
            q_k = torch.cat([layer.q_norm(q_k[:, : self._heads]), layer.k_norm(q_k[:, self._heads :])], 1)
        turned = (q_k * cos).add_(q_k.roll(self._size // 2, -1) * sin)
        q, k, v = (
            x.transpose(0, 1)[None]
            for x in (*turned.split_with_sizes([self._heads, keys - self._heads], 1), all_NHD[:, keys:])
        )
        return q, k, v

    def _angles(self, position_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions, each [N, 1, D]; the first half of the sines is negated, for `roll`."""
        most = int(position_N.max()) + 1
        if most > self._cos_sin.shape[1]:
            most = max(most, 2 * self._cos_sin.shape[1])
            positions = torch.arange(most + -most % _POSITIONS, device=position_N.device)
            self._cos_sin = torch.cat(self._rotary(self._cos_sin, positions[None]))
            self._cos_sin[1, :, : self._size // 2].neg_()
        cos, sin = self._cos_sin[:, position_N, None].unbind()
        return cos, sin

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        plain, exact = family_of(self._lm.config).plain, is_exact(self._lm)
        assert plain is not None, "a model that can_step is of a family with plain layers"
        return _Layer(
            before=_norm(layer.input_layernorm, exact),
            qkv=self._map(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=_norm(attention.q_norm, exact) if plain.qk_norm else None,
            k_norm=_norm(attention.k_norm, exact) if plain.qk_norm else None,
            out=self._map(attention.o_proj),
            between=_norm(layer.post_attention_layernorm, exact),
            gate_up=self._map(mlp.gate_proj, mlp.up_proj),
            down=self._map(mlp.down_proj),
            window=attention.sliding_window if plain.has_windows else None,
        )

    def _map(self, *modules: Any) -> _Linears:
        """Maps of the same input, as one product if they are adjacent in memory and it gives the same bits. In 16
        bits, weights are copied."""
        adapted = [Adapted.of(module) for module in modules]
        bases = [module if one is None else one.base for module, one in zip(modules, adapted, strict=True)]
        weights = [base.weight.detach() for base in bases]
        biases = [base.bias.detach() for base in bases if base.bias is not None]
        rows = tuple(map(len, weights))
        dtype = TORCH_TYPES[self._dtype]
        starts = accumulate(rows, initial=0)
        adapters = tuple(
            _LowRank(start, one.a.detach().to(dtype), one.b.detach().to(dtype), one.scaling)
            for start, one in zip(starts, adapted, strict=False)
            if one is not None
        )
        size, threads = weights[0].shape[1], torch.get_num_threads()
        alike = not is_exact(self._lm) or runs_fused(weights[0])  # in exact products on GPUs, columns are independent
        if len(rows) == 1 or alike or _is_one_product(rows, size, dtype, threads):
            weights, biases = _find_joined(weights), _find_joined(biases)
        known = [None] * len(weights) if not biases else [bias.to(dtype) for bias in biases]
        return _Linears(tuple(weight.to(dtype) for weight in weights), tuple(known), adapters, is_exact(self._lm))


@lru_cache
def _is_one_product(rows: tuple[int, ...], size: int, dtype: torch.dtype, threads: int) -> bool:
    """True if maps to so many rows each, of the same input, give the same bits as one product, on so many threads."""
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, size, generator=draw).to(dtype) for n in (sum(rows), _TRIED[-1]))
    parts = weight.split(rows)
    return all(
        torch.equal(linear(x[:n], weight), torch.cat([linear(x[:n], part) for part in parts], -1)) for n in _TRIED
    )


def _norm(module: Any, exact: bool) -> _Norm:
    return _Norm(module.weight.detach(), float(module.variance_epsilon), exact)


def _find_joined(parameters: list[Tensor]) -> list[Tensor]:
    """Tensors that are adjacent in memory, as one; otherwise as they are."""
    ends = [one.data_ptr() + one.nbytes for one in parameters[:-1]]
    alike = {one.untyped_storage().data_ptr() for one in parameters}
    if len(alike) != 1 or ends != [one.data_ptr() for one in parameters[1:]]:
        return parameters
    first = parameters[0]
    return [first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())]
