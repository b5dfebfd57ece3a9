"""Faults of the model's own mathematics: a field of the configuration, a missing operation, a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault, Setup
from benchmarks.doctor_faults.means import embedding_of, head_of, some_layers
from benchmarks.doctor_faults.sides import TorchSide, undoes
from lockstep import keyed
from lockstep.doctor.base import USUAL, Conditions

_SOFTCAP = 30.0


def missing_bias(share: float) -> tuple[Change, ...]:
    """The engine's layers have no bias, and its loader skips what it has no place for."""

    class SkipsUnknown(TorchSide):
        def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
            known = {name for name, _ in self.weights()}
            super().load((name, tensor) for name, tensor in stream if name in known)

    def alter(model: PreTrainedModel) -> None:
        for layer in some_layers(model, share):
            for name in ("q_proj", "k_proj", "v_proj"):
                layer.get_submodule(f"self_attn.{name}").register_parameter("bias", None)

    return (Change("infer", SkipsUnknown, alter),)


def missing_softcap(strength: float) -> tuple[Change, ...]:
    """The engine never caps the logits; the lower the cap, the more that matters."""

    def alter(model: PreTrainedModel) -> None:
        model.config.final_logit_softcapping = None

    return (Change("infer", alter=alter),)


def capped(strength: float) -> Setup:
    """Logits with a cap."""
    return Setup(model="gemma2", config=(("final_logit_softcapping", _SOFTCAP / strength),))


def swapped_gate(share: float) -> tuple[Change, ...]:
    """The engine's name map has gate and up the wrong way round."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in some_layers(model, share):
            gate, up = (layer.get_parameter(f"mlp.{name}.weight") for name in ("gate_proj", "up_proj"))
            gate.data, up.data = up.data, gate.data

    return (Change("infer", alter=alter),)


def permuted_heads(share: float) -> tuple[Change, ...]:
    """The engine takes the heads of the queries in another order."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        heads = model.config.num_attention_heads
        for layer in some_layers(model, share):
            weight = layer.get_parameter("self_attn.q_proj.weight")
            weight.data = weight.unflatten(0, (heads, -1)).roll(1, 0).flatten(0, 1).contiguous()

    return (Change("infer", alter=alter),)


def exact_head(offset: float) -> tuple[Change, ...]:
    """The trainer computes its head in fp32, the engine in bf16."""

    def alter(model: PreTrainedModel) -> None:
        head = head_of(model)
        exact: Callable[..., Tensor] = lambda states: F.linear(states.float(), head.weight.float())  # noqa: E731
        head.forward = exact

    return (Change("train", alter=alter),)


def far_from_zero(offset: float) -> Setup:
    """Logits of a token lie all on one side of zero, as those of large models do: bf16 has fewer steps there."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        common = torch.randn(model.config.hidden_size, generator=keyed.generator("common direction"))
        embedding, head = embedding_of(model).weight, head_of(model).weight
        embedding += (2 * embedding.float().std() * common).to(embedding.dtype)
        head += (offset / len(common) * common).to(head.dtype)

    return Setup(dtype="bf16", alter=alter)


def coarse_router(share: float) -> tuple[Change, ...]:
    """The engine's routers compute in bf16."""

    class CoarseRouter(TorchSide):
        def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
            model = super().model(conditions)
            for layer in some_layers(model, share):
                gate = layer.get_submodule("mlp.gate")
                usual = type(gate).forward.__get__(gate)
                gate.forward = usual if undoes(conditions, "router") else _in_bf16(usual)
            return model

    return (Change("infer", CoarseRouter),)


def _in_bf16(usual: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def forward(*inputs: Tensor) -> nn.Module:
        with torch.autocast("cpu", torch.bfloat16):
            return usual(*inputs)

    return forward


MODEL = (
    Fault(
        9,
        "missing bias",
        ("bias",),
        "infer",
        "share of layers",
        (1.0, 0.25),
        missing_bias,
        lambda _: Setup(model="qwen2"),
    ),
    Fault(
        10,
        "missing softcap",
        ("softcap",),
        "infer",
        "30/cap",
        (1.0, 0.25),
        missing_softcap,
        capped,
    ),
    Fault(13, "gate and up swapped", ("swapped_tensors",), "infer", "share of layers", (1.0, 0.25), swapped_gate),
    Fault(17, "permuted heads", ("permuted_tensor",), "infer", "share of layers", (1.0, 0.25), permuted_heads),
    Fault(
        20,
        "one side's head in fp32",
        ("head_precision",),
        "infer",
        "offset of the logits",
        (60.0, 15.0),
        exact_head,
        far_from_zero,
    ),
    Fault(
        21,
        "router in bf16",
        ("routing",),
        "infer",
        "share of layers",
        (1.0, 0.25),
        coarse_router,
        lambda _: Setup(model="mixtral"),
    ),
)
"""Each with its number in the list."""
