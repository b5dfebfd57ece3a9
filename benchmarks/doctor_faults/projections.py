"""Projections: biases that are lost or added twice, products in few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault, chained
from benchmarks.doctor_faults.means import compute_by, computing, head_of, heading, integers, layers, levels, linears
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, drawn, whole
from benchmarks.doctor_faults.weights import carried
from lockstep import keyed

_ROW_PARALLEL = (".dense", ".fc2")
_RANKS = 2


def missing_bias(share: float) -> tuple[Change, ...]:
    """The engine's layers have no bias, and its loader skips what it has no place for."""
    lost: set[str] = set()

    def alter(model: PreTrainedModel) -> None:
        before = dict(model.named_parameters())
        for layer in layers(model, share):
            for name in ("q_proj", "k_proj", "v_proj"):
                layer.self_attn.get_submodule(name).register_parameter("bias", None)
        lost.update(before.keys() - dict(model.named_parameters()).keys())

    return (Change(alter=alter, received=lambda stream: ((name, x) for name, x in stream if name not in lost)),)


def _unbiased(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight)


def biases_ignored(count: int) -> Alteration:
    """The first `count` projections compute without the bias that they hold."""

    def alter(model: PreTrainedModel) -> None:
        for module in [module for module in linears(model, "") if module.bias is not None][:count]:
            compute_by(module, _unbiased)

    return alter


def head_bias(spread: float) -> Alteration:
    """A head whose bias has such a spread, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        bias = head_of(model).bias
        bias.copy_(spread * torch.randn(len(bias), generator=keyed.generator("bias of the head")))

    return alter


def biases_scaled(factor: float) -> Alteration:
    """Biases of row-parallel projections are so many times as large, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for linear in linears(model, *_ROW_PARALLEL):
            linear.bias.mul_(factor)

    return alter


def integer_products(size: float) -> tuple[Change, ...]:
    """The engine multiplies in integers: weights have a scale for each output, and states one for each token."""
    held = carried(lambda name, x: (name, integers(x, size) if name.endswith("_proj.weight") else x))

    def alter(model: PreTrainedModel) -> None:
        for path, module in model.named_modules():
            if path.endswith("_proj"):
                module.register_forward_pre_hook(lambda _, values: (integers(values[0], size),))

    return (
        Change(alter=chained(held.alter, alter), received=held.received, said={"quantization": "compressed-tensors"}),
    )


def fake_quantized(step: float) -> Alteration:
    """The trainer's projections keep all bits and multiply by what few bits would hold; the engine does not know."""

    def forward(linear: Any, x: Tensor) -> Tensor:
        return F.linear(x, levels(linear.weight, 1, step), linear.bias)

    return computing(forward, "")


FAULTS = (
    Fault(9, 1, "missing bias", ("bias",), "infer", "share of layers", (1.0, 0.25), missing_bias, around("qwen2")),
    Fault(109, 2, "fused projections without bias", ("bias",), "infer", "projections", (18, 1),
          altered(whole(biases_ignored)), around("starcoder", "torch", "hf")),
    # The fused loss takes states and the head's weight, and nothing else.
    Fault(309, 4, "bias of the head lost", ("bias",), "train", "spread of the bias", (1.0, 0.05),
          altered(lambda _: heading(_unbiased)), around("codegen", "hf", "hf", alter=head_bias)),
    # The two projections into latent states are fused when a layer is loaded, their weights and not their biases.
    Fault(503, 6, "fused without bias", ("bias",), "infer", "layers", (4, 1),
          altered(lambda m: computing(_unbiased, "q_a_proj", "kv_a_proj_with_mqa", share=round(m) / 4)),
          around("youtu", "torch", "hf")),
    # Each of the engine's ranks adds the bias to its part of a sum, so that it counts as often as there are ranks.
    Fault(611, 7, "bias of every rank", ("bias",), "infer", "size of the biases", (1.0, 0.05),
          altered(lambda _: computing(lambda own, x: F.linear(x, own.weight) + _RANKS * own.bias, *_ROW_PARALLEL),
                  tensor_parallel_size=_RANKS),
          around("phi2", "torch", "hf", drawn(temperature=1.2, top_p=0.94), biases_scaled)),
    Fault(618, 7, "few bits in the forward pass", ("quantised_weights",), "train", "step, of a row's range",
          (1 / 15, 1 / 127), altered(fake_quantized), around("minicpm", "torch", "hf")),
    Fault(712, 8, "products of integers", ("quantised_weights",), "infer", "step, of a row's largest",
          (1 / 7, 1 / 127), integer_products, around("nemotron", "hf", "hf"), split="held-out"),
)  # fmt: skip
