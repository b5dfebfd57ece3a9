"""Fourth faults of a model's parts: rotary scales, kernels, biases, limits, routers, experts over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fourth_ground import VOCABULARY
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide
from lockstep import keyed
from lockstep.doctor.base import Conditions

_RANKS = 4
_TYPES = ((2.0**-3, torch.float8_e5m2), (2.0**-4, torch.float8_e4m3fn), (0.0, torch.bfloat16))
"""The least relative rounding at which each is meant."""


def low_type(rounding: float) -> torch.dtype:
    """The type that rounds by so much."""
    return next(dtype for least, dtype in _TYPES if rounding >= least)


def angles_unscaled(model: PreTrainedModel) -> None:
    """The scaling of long contexts moves the frequencies, and forgets that cosines and sines are scaled as well."""
    rotary: Any = model.base_model.rotary_emb
    rotary.attention_scaling = 1.0


class CapsScores(HFSide):
    """Computes attention by the plain kernel, which caps scores; the fused one of the other side ignores the cap."""

    def attention(self, conditions: Conditions) -> str:
        return conditions.kernel or "eager"


def head_bias(size: float) -> Alteration:
    """A head whose bias has such a spread, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        bias = _head(model).bias
        bias.copy_(size * torch.randn(VOCABULARY, generator=keyed.generator("bias of the head")))

    return alter


def head_unbiased(model: PreTrainedModel) -> None:
    """The fused loss takes states and the head's weight, and nothing else."""
    head = _head(model)
    head.forward = _product(head)


def _product(head: nn.Linear) -> Any:
    return lambda input: F.linear(input, head.weight)


def _head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    return head


def unlimited(model: PreTrainedModel) -> None:
    """The kernel of the experts' activation knows no limit of its inputs."""
    for layer in decoder_layers(model):
        layer.mlp.experts.limit = float("inf")


def renormalised(model: PreTrainedModel) -> None:
    """The fused experts make the weights of the chosen ones add up to 1, whatever the model wants."""
    for layer in decoder_layers(model):
        layer.mlp.gate.norm_topk_prob = True


def in_training_mode(model: PreTrainedModel) -> None:
    """What a training loop calls before its first step, and nobody takes back."""
    model.train()


def experts_over_ranks(rounding: float) -> Alteration:
    """Experts lie on ranks, and what each of these makes of a token is sent in a low precision."""
    dtype = low_type(rounding)

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model):
            experts = layer.mlp.experts
            experts.forward = _over_ranks(experts, experts.forward, dtype)

    return alter


def _over_ranks(experts: Any, usual: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    def forward(states_ND: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:
        rank_NK = expert_NK // (experts.num_experts // _RANKS)
        total_ND = torch.zeros_like(states_ND)
        for rank in range(_RANKS):
            own_ND = usual(states_ND, expert_NK, weight_NK.masked_fill(rank_NK != rank, 0.0))
            total_ND = total_ND + own_ND.to(dtype).to(own_ND.dtype)
        return total_ND

    return forward


class ExpertParallel(TorchSide):
    """Says how many ranks it computes on."""

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), "tensor_parallel_size": _RANKS, "expert_parallel": True}


def decoder_layers(model: PreTrainedModel) -> list[Any]:
    """Its layers."""
    decoder: Any = model.base_model
    return list(decoder.layers)
