"""What second faults do to a model's layers: each of these alters a model that has been built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.sides import Alteration
from lockstep import keyed

Sum = Callable[[Tensor, nn.Linear], Tensor]
Forward = Any
"""What stands for a module's `forward`: it takes one tensor."""


@dataclass
class Switch:
    """Whether an alteration acts at the moment: a backend whose condition undoes it turns it off."""

    on: bool = True


def layers(model: PreTrainedModel) -> list[Any]:
    """The decoder's layers."""
    decoder: Any = model.base_model
    return list(decoder.layers)


def linears(model: PreTrainedModel, *names: str) -> list[nn.Linear]:
    """Linear modules of some names, the first layer's first."""
    found = [module for path, module in model.named_modules() if path.endswith(names)]
    return [module for module in found if isinstance(module, nn.Linear)]


def coarse(x: Tensor, step: float) -> Tensor:
    """Rounds to a mantissa whose relative step is `step`; bf16 has 2⁻⁸."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa / step).round() * step, exponent)


def noise(like: Tensor, *key: str | int) -> Tensor:
    """Standard normal numbers times the tensor's own spread."""
    drawn = torch.randn(like.shape, generator=keyed.generator("held out", *key))
    return drawn.to(like.dtype) * like.std()


def one_rotary_stretched(factor: float) -> Alteration:
    """Positions of the second layer's rotary embedding run faster."""

    def alter(model: PreTrainedModel) -> None:
        rotary: Any = model.base_model.rotary_emb

        def stretched(
            module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            usual = named["position_embeddings"][0]
            return inputs, named | {"position_embeddings": rotary(usual, named["position_ids"] * factor)}

        layers(model)[1].self_attn.register_forward_pre_hook(stretched, with_kwargs=True)

    return alter


def wider_windows(more: int) -> Alteration:
    """The windows of a layer's attention module are wider than its configuration says."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            if layer.self_attn.sliding_window is not None:
                layer.self_attn.sliding_window += more

    return alter


def biases_ignored(count: int) -> Alteration:
    """The first `count` projections compute without the bias that they hold."""

    def alter(model: PreTrainedModel) -> None:
        biased = [module for module in model.modules() if isinstance(module, nn.Linear) and module.bias is not None]
        for module in biased[:count]:
            module.forward = _unbiased(module)

    return alter


def _unbiased(module: nn.Linear) -> Forward:
    return lambda input: F.linear(input, module.weight)


def head_norm_epsilon(epsilon: float) -> Alteration:
    """The norms of queries and keys have another epsilon."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.self_attn.q_norm.variance_epsilon = epsilon
            layer.self_attn.k_norm.variance_epsilon = epsilon

    return alter


def padded_head(rows: int) -> Alteration:
    """The head computes logits of rows that only fill its last shard up; they hold the first rows again."""

    def alter(model: PreTrainedModel) -> None:
        head: Any = model.get_output_embeddings()
        head.forward = _padded(head, rows)

    return alter


def _padded(head: nn.Linear, rows: int) -> Forward:
    def forward(input: Tensor) -> Tensor:
        return F.linear(input, torch.cat([head.weight, head.weight[:rows]]))

    return forward


def untied_head(age: float) -> Alteration:
    """The head is a copy of its own, of an older embedding."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        head: Any = model.get_output_embeddings()
        weight = head.weight.detach()
        head.weight = nn.Parameter(weight + age * noise(weight, "head"), requires_grad=False)

    return alter


def router_rounded(step: float, switch: Switch) -> Alteration:
    """Routers read states in a low precision."""

    def rounded(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (coarse(inputs[0], step), *inputs[1:]) if switch.on else inputs

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.gate.register_forward_pre_hook(rounded)

    return alter


def summed_by(sum_of: Sum, *names: str) -> Alteration:
    """Projections of these names add their products up otherwise."""

    def alter(model: PreTrainedModel) -> None:
        for module in linears(model, *names):
            module.forward = _by(sum_of, module)

    return alter


def _by(sum_of: Sum, module: nn.Linear) -> Forward:
    return lambda input: sum_of(input, module)


def partial_sums(x: Tensor, module: nn.Linear, parts: int) -> Iterator[Tensor]:
    """The products of each part of the inputs."""
    pieces = torch.tensor_split(x, parts, -1), torch.tensor_split(module.weight, parts, -1)
    for columns, weight in zip(*pieces, strict=True):
        yield F.linear(columns, weight)


def by_ranks(step: float, ranks: int = 4) -> Sum:
    """A row-parallel product: each rank rounds its part before it is sent."""

    def total(x: Tensor, module: nn.Linear) -> Tensor:
        return torch.stack([coarse(part, step) for part in partial_sums(x, module, ranks)]).sum(0)

    return total


def by_rows(step: float) -> Sum:
    """Another kernel for each number of rows: the more rows, the more pieces, each rounded."""

    def total(x: Tensor, module: nn.Linear) -> Tensor:
        rows = min(x.shape[0], 8)
        if rows == 1:
            return F.linear(x, module.weight, module.bias)
        parts = torch.stack([coarse(part, step) for part in partial_sums(x, module, rows)]).sum(0)
        return parts if module.bias is None else parts + module.bias

    return total


def in_any_order(step: float) -> Sum:
    """Pieces are added in the order in which they happen to be ready, and rounded each time."""
    ready = torch.Generator().manual_seed(20)

    def total(x: Tensor, module: nn.Linear) -> Tensor:
        parts = list(partial_sums(x, module, 8))
        result = torch.zeros_like(parts[0])
        for place in torch.randperm(len(parts), generator=ready).tolist():
            result = coarse(result + parts[place], step)
        return result

    return total


def one_dropout(probability: float) -> Alteration:
    """The feed-forward of the second layer drops out; all else is in evaluation mode."""

    def alter(model: PreTrainedModel) -> None:
        dropout = layers(model)[1].resid_mlp_dropout
        dropout.p = probability
        dropout.train()

    return alter
