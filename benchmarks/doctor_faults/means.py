"""What faults are made of: real low-precision types, sums in parts, a share of layers or of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from lockstep import keyed

_TYPES = (
    (2.0**-2, torch.float8_e5m2),
    (2.0**-3, torch.float8_e4m3fn),
    (2.0**-8, torch.bfloat16),
    (2.0**-11, torch.float16),
)
"""Each type with the relative error that rounding to it can make."""

E5M2, E4M3, BF16, FP16 = (error for error, _ in _TYPES)


def type_with(error: float) -> torch.dtype:
    """The coarsest type that rounds by no more than a relative error; fp32 where none is that fine."""
    return next((dtype for coarse, dtype in _TYPES if coarse <= error), torch.float32)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers as a type with a scale per row holds them."""
    if dtype.itemsize > 1:
        return x.to(dtype).to(x.dtype)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(dtype).max
    return (x / scale).to(dtype).to(x.dtype) * scale


def summed(x: Tensor, linear: nn.Linear, order: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A linear layer whose inner dimension is cut into parts, whose products are added one by one in a type.

    Args:
        x: [..., I].
        linear: From I to O.
        order: In which the parts are added; there are so many.
        dtype: Of the partial products and of their sum.

    Returns:
        [..., O], in the type of a usual product.
    """
    xs, weights = x.tensor_split(len(order), -1), linear.weight.tensor_split(len(order), -1)
    products = [F.linear(xs[part], weights[part]) for part in order]
    total = products[0].to(dtype)
    for product in products[1:]:
        total = total + product.to(dtype)
    output = total.to(products[0].dtype)
    return output if linear.bias is None else output + linear.bias.to(output.dtype)


def some_layers(model: PreTrainedModel, share: float) -> Iterable[nn.Module]:
    """The last layers, at least one; those before them see nothing of what is done to them."""
    layers = model.base_model.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    return layers[-math.ceil(share * len(layers)) :]


def linears(modules: Iterable[nn.Module]) -> Iterable[nn.Linear]:
    """Every linear layer inside."""
    return [inner for module in modules for inner in module.modules() if isinstance(inner, nn.Linear)]


def head_of(model: PreTrainedModel) -> nn.Linear:
    """Its output layer."""
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    return head


def embedding_of(model: PreTrainedModel) -> nn.Embedding:
    """Its input layer."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return embedding


def is_chosen(tokens_T: Tensor, share: float) -> bool:
    """Whether a sequence is among a share of all, by its first tokens; so it is wherever it lies."""
    key = keyed.key("chosen", *tokens_T[:8].tolist())
    return bool(keyed.uniforms(torch.tensor([key]), torch.arange(1)) < share)
