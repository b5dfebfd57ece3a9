"""The feed-forward: activations, routers, and what experts add up to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault
from benchmarks.doctor_faults.means import coarse, compute_by, layers, with_fields
from benchmarks.doctor_faults.sides import Alteration, undoes
from benchmarks.doctor_faults.surroundings import altered, around, configured, drawn, inverse
from lockstep import keyed
from lockstep.doctor.base import Conditions

_ACTIVATIONS = ((0.1, "relu"), (0.01, "quick_gelu"), (0.0, "gelu_pytorch_tanh"))
"""Others than gelu, and what they are away from it at most, at least."""


class _Activation(nn.Module):
    """An activation by a function."""

    def __init__(self, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._own = own

    def forward(self, x: Tensor) -> Tensor:
        return self._own(x)


def activating(own: Callable[[Any], Callable[[Tensor], Tensor]]) -> Alteration:
    """Feed-forwards have an activation that a function makes of their own."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.act_fn = _Activation(own(layer.mlp.act_fn))

    return alter


def from_a_table(step: float) -> Alteration:
    """The engine's feed-forward looks its activation up in a table, at the nearest step."""
    return activating(lambda usual: lambda x: usual((x / step).round() * step))


def routing_by(forward: Callable[..., Any], share: float, model: PreTrainedModel, conditions: Conditions) -> None:
    """Routers of the last layers compute by a function of themselves and their inputs, unless they are to be exact."""
    for layer in layers(model, share):
        gate = layer.mlp.gate
        compute_by(gate, type(gate).forward if undoes(conditions, "router") else forward)


def _in_bf16(gate: Any, *values: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return type(gate).forward(gate, *values)


def _reading_coarsely(step: float, gate: Any, x: Tensor, *others: Tensor) -> Any:
    return type(gate).forward(gate, coarse(x, step), *others)


def fixed_capacity(tokens: int) -> Alteration:
    """Experts have buffers for so many tokens of a pass; those that come later get nothing from them."""

    def dropped(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states, expert_NK, weight_NK = values
        ones = F.one_hot(expert_NK.flatten())
        place = ((ones.cumsum(0) - 1) * ones).sum(-1).view(expert_NK.shape)
        return states, expert_NK, weight_NK.masked_fill(place >= tokens, 0.0)

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.experts.register_forward_pre_hook(dropped)

    return alter


def expert_biases(spread: float) -> Alteration:
    """Biases that balance experts have such a spread, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(spread * torch.randn(len(buffer), generator=keyed.generator("sixth", name)))

    return alter


def _biases_in_the_weights(model: PreTrainedModel) -> None:
    """The trainer's router weighs experts by the scores that it chose them by, biases included."""

    def forward(gate: Any, states_ND: Tensor, bias_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, _, expert_NK = type(gate).forward(gate, states_ND, bias_E)
        weight_NK = (logits_NE.sigmoid() + bias_E).gather(1, expert_NK)
        return logits_NE, weight_NK / weight_NK.sum(-1, keepdim=True), expert_NK

    for layer in layers(model):
        if "gate" in dict(layer.feed_forward.named_children()):
            compute_by(layer.feed_forward.gate, forward)


def output_biases_scaled(factor: float) -> Alteration:
    """Biases of the experts' outputs are so many times as large, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.experts.down_proj_bias.mul_(factor)

    return alter


def _biases_unweighted(model: PreTrainedModel) -> None:
    """The trainer's grouped product adds biases of experts behind the weighted sum, each as it is."""

    def added(experts: Any, values: tuple[Tensor, Tensor, Tensor], output_ND: Tensor) -> Tensor:
        _, expert_NK, weight_NK = values
        return output_ND + ((1 - weight_NK)[..., None] * experts.down_proj_bias[expert_NK]).sum(1)

    for layer in layers(model):
        layer.mlp.experts.register_forward_hook(added)


FAULTS = (
    Fault(21, 1, "router in bf16", ("routing",), "infer", "share of layers", (1.0, 0.25),
          lambda m: (Change(asked=partial(routing_by, _in_bf16, m)),), around("mixtral")),
    Fault(121, 2, "coarse router", ("routing",), "infer", "relative step", (2**-3, 2**-9),
          lambda m: (Change(asked=partial(routing_by, partial(_reading_coarsely, m), 1.0)),),
          around("qwen3 moe", "torch", "torch")),
    Fault(208, 3, "other activation in the configuration", ("activation",), "infer", "largest difference",
          (0.17, 0.02), configured(hidden_act=lambda m: next(name for least, name in _ACTIVATIONS if m >= least)),
          around("neox", "torch", "hf", drawn(temperature=0.8))),
    Fault(211, 3, "fewer groups of experts", ("routing",), "infer", "groups too few", (5, 1),
          configured(topk_group=lambda m: 6 - round(m)), around("deepseek", "torch", "hf")),
    Fault(217, 3, "experts of fixed capacity", ("batch_variance", "routing"), "train", "1 / tokens",
          (1 / 320, 1 / 420), altered(inverse(fixed_capacity)), around("olmoe", "hf", "torch")),
    # The kernel of the experts' activation knows no limit of its inputs.
    Fault(310, 4, "inputs of experts without a limit", ("activation",), "infer", "1 / limit", (2.0, 0.55),
          altered(lambda _: with_fields("mlp.experts", limit=float("inf"))),
          around("gpt oss", "hf", "hf", swiglu_limit=lambda m: 1 / m)),
    # The fused experts make the weights of the chosen ones add up to 1, against the model's wish.
    Fault(311, 4, "weights of experts add up to one", ("routing",), "infer", "experts left out", (6, 1),
          altered(lambda _: with_fields("mlp.gate", norm_topk_prob=True)),
          around("qwen2 moe", "hf", "torch", drawn(temperature=0.85), num_experts_per_tok=lambda m: 8 - round(m))),
    Fault(507, 6, "biases in the weights of experts", ("routing",), "train", "spread of the biases", (0.5, 0.05),
          altered(lambda _: _biases_in_the_weights),
          around("lfm moe", "torch", "torch", drawn(temperature=0.8), expert_biases)),
    # The trainer's fused feed-forward has the slope inside its sigmoid that another model wanted.
    Fault(514, 6, "slope of another model", ("activation",), "train", "slope − 1", (0.702, 0.05),
          altered(lambda m: activating(lambda _: lambda x: x * torch.sigmoid((1 + m) * x))),
          around("doge", "hf", "hf")),
    Fault(613, 7, "activation from a table", ("activation",), "infer", "step", (0.5, 0.05),
          altered(from_a_table), around("granite", "torch", "hf", drawn(temperature=1.3))),
    Fault(707, 8, "biases of experts unweighted", ("bias", "routing"), "train", "size of the biases", (3.0, 0.1),
          altered(lambda _: _biases_unweighted), around("gpt oss", "hf", "hf", alter=output_biases_scaled),
          split="held-out"),
    # The engine's fused router leaves the factor of routed experts to the layer, which does not know of it.
    Fault(708, 8, "routed experts unscaled", ("routing",), "infer", "factor − 1", (0.5, 0.01),
          altered(lambda _: with_fields("mlp.gate", routed_scaling_factor=1.0)),
          around("solar", "torch", "torch", drawn(temperature=0.7), routed_scaling_factor=lambda m: 1 + m),
          split="held-out"),
)  # fmt: skip
