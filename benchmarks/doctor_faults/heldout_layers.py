"""Held-out faults of a model's parts: stages, biases, routers, noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.doctor_faults.second_layers import layers
from benchmarks.doctor_faults.sides import Alteration


def counted_by_stage(size: int) -> Alteration:
    """Each stage of the trainer counts its layers from 0, and attention takes a factor that depends on the number."""

    def alter(model: PreTrainedModel) -> None:
        usual = [layer.self_attn.lambda_init for layer in layers(model)]
        for place, layer in enumerate(layers(model)):
            layer.self_attn.lambda_init = usual[place % size]

    return alter


def expert_biases_scaled(factor: float) -> Alteration:
    """Biases of the experts' outputs are so many times as large, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.mlp.experts.down_proj_bias.mul_(factor)

    return alter


def biases_unweighted(model: PreTrainedModel) -> None:
    """The trainer's grouped product adds biases of experts behind the weighted sum, each as it is."""

    def added(experts: Any, values: tuple[Tensor, Tensor, Tensor], output_ND: Tensor) -> Tensor:
        _, expert_NK, weight_NK = values
        return output_ND + ((1 - weight_NK)[..., None] * experts.down_proj_bias[expert_NK]).sum(1)

    for layer in layers(model):
        layer.mlp.experts.register_forward_hook(added)


def routed_unscaled(model: PreTrainedModel) -> None:
    """The engine's fused router leaves the factor of routed experts to the layer, which does not know of it."""
    for layer in layers(model):
        layer.mlp.gate.routed_scaling_factor = 1.0


def noisy_embedding(strength: float) -> Alteration:
    """The trainer scores in training mode, in which the embedding adds noise (NEFTune)."""
    chance = torch.Generator().manual_seed(710)

    def noisy(module: nn.Module, values: tuple[Tensor, ...], output_BTD: Tensor) -> Tensor:
        if not module.training:
            return output_BTD
        most = strength / math.sqrt(output_BTD.shape[1] * output_BTD.shape[2])
        return output_BTD + most * (2 * torch.rand(output_BTD.shape, generator=chance) - 1)

    def alter(model: PreTrainedModel) -> None:
        model.train()
        model.get_input_embeddings().register_forward_hook(noisy)

    return alter
