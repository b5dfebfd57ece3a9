"""What faults are made of: low-precision numbers, sums in parts, modules that compute otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.sides import Alteration
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
    return next((dtype for coarsest, dtype in _TYPES if coarsest <= error), torch.float32)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers as a type with a scale per row holds them."""
    if dtype.itemsize > 1:
        return x.to(dtype).to(x.dtype)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(dtype).max
    return (x / scale).to(dtype).to(x.dtype) * scale


def integers(x: Tensor, step: float, *dims: int) -> Tensor:
    """Numbers as integers hold them, with a scale for the largest along some dimensions (default: the last)."""
    scale = x.abs().amax(dims or (-1,), keepdim=True).clamp(min=1e-9) * step
    return (x / scale).round() * scale


def levels(x: Tensor, dim: int, step: float) -> Tensor:
    """Rounded to 1/step steps between the least and the largest number along a dimension."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    width = (high - low).clamp(min=1e-9) * step
    return ((x - low) / width).round() * width + low


def by_blocks(x: Tensor, size: int, own: Callable[[Tensor], Tensor]) -> Tensor:
    """What a function makes of each block along the last dimension."""
    return own(x.unflatten(-1, (-1, size))).flatten(-2)


def coarse(x: Tensor, step: float) -> Tensor:
    """Rounds to a mantissa whose relative step is `step`; bf16 has 2⁻⁸."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa / step).round() * step, exponent)


def noise(like: Tensor, *key: str | int) -> Tensor:
    """Standard normal numbers times the tensor's own spread."""
    drawn = torch.randn(like.shape, generator=keyed.generator("held out", *key))
    return drawn.to(like.dtype) * like.std()


def partial_sums(x: Tensor, linear: nn.Linear, parts: int) -> Iterator[Tensor]:
    """The products of each part of the inputs."""
    for columns, weight in zip(x.tensor_split(parts, -1), linear.weight.tensor_split(parts, -1), strict=True):
        yield F.linear(columns, weight)


def layers(model: PreTrainedModel, share: float = 1.0) -> list[Any]:
    """The last layers, at least one; those before them see nothing of what is done to them."""
    found = list(model.base_model.get_submodule("layers").children())
    return found[-math.ceil(share * len(found)) :]


def linears(model: nn.Module, *endings: str) -> list[nn.Linear]:
    """Linear modules whose paths end so, the first layer's first."""
    found = [module for path, module in model.named_modules() if path.endswith(endings)]
    return [module for module in found if isinstance(module, nn.Linear)]


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


def compute_by(module: nn.Module, forward: Callable[..., Any]) -> None:
    """The module computes by a function of itself and its inputs."""
    vars(module)["forward"] = partial(forward, module)


def computing(forward: Callable[[Any, Tensor], Tensor], *endings: str, share: float = 1.0) -> Alteration:
    """Linear modules of the last layers compute by a function of themselves and their input."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model, share):
            for linear in linears(layer, *endings):
                compute_by(linear, forward)

    return alter


def heading(forward: Callable[[Any, Tensor], Tensor]) -> Alteration:
    """The head computes by a function of itself and its input."""
    return lambda model: compute_by(head_of(model), forward)


def with_fields(path: str, **values: Any) -> Alteration:
    """A module of each layer has other attributes."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            vars(layer.get_submodule(path)).update(values)

    return alter


def embedded(hook: Callable[..., Tensor]) -> Alteration:
    """What the embedding gives goes through a function of it, its inputs and its output."""

    def alter(model: PreTrainedModel) -> None:
        model.get_input_embeddings().register_forward_hook(hook)

    return alter


def tensors_by(changed: Callable[[str, Tensor], Tensor]) -> Alteration:
    """Parameters and buffers become what a function makes of their name and value."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(changed(name, tensor))

    return alter


def is_chosen(tokens_T: Tensor, share: float) -> bool:
    """Whether a sequence is among a share of all, by its first tokens; so it is wherever it lies."""
    key = keyed.key("chosen", *tokens_T[:8].tolist())
    return bool(keyed.uniforms(torch.tensor([key]), torch.arange(1)) < share)
