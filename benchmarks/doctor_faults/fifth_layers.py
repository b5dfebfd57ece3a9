"""Fifth faults of a model's parts and of its weights: norms, bases, caches of weights, experts, ties, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Case, Change
from benchmarks.doctor_faults.kept import step
from benchmarks.doctor_faults.second_layers import coarse, partial_sums
from benchmarks.doctor_faults.sides import Alteration, TorchSide

_POST = ("post_attention_layernorm", "post_mlp_layernorm")
_USUAL_BASE = 10_000.0
_MOVED = 3
_TILE = 256
"""More tokens than a sequence has."""


def post_norm_epsilon(epsilon: float) -> Alteration:
    """Norms behind a layer's parts are built with a default epsilon, those before them with the configured one."""

    def alter(model: PreTrainedModel) -> None:
        for path, module in model.named_modules():
            if path.endswith(_POST):
                vars(module)["variance_epsilon"] = epsilon

    return alter


def one_base(model: PreTrainedModel) -> None:
    """The engine knows one rotary base, that of layers with full attention, and turns sliding layers by it too."""
    rotary: Any = model.base_model.rotary_emb
    usual = rotary.forward
    rotary.forward = lambda states, position_ids, layer_type: usual(states, position_ids, "full_attention")


def gate_and_up_cached(model: PreTrainedModel) -> None:
    """The engine lays gate and up together when it warms up, and a refit does not renew what it laid together."""
    for layer in decoder_layers(model):
        layer.mlp.forward = _merged(layer.mlp)


def _merged(mlp: Any) -> Callable[[Tensor], Tensor]:
    merged = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach().clone()

    def forward(x: Tensor) -> Tensor:
        gate, up = F.linear(x, merged).chunk(2, -1)
        return mlp.down_proj(mlp.act_fn(gate) * up)

    return forward


def experts_moved(last: int, count: int) -> tuple[Change, ...]:
    """Experts were moved to balance their load, and a refit writes those of `count` layers by the map from before."""
    wrong = tuple(f".layers.{layer}.mlp.experts." for layer in range(last, last - count, -1))

    def moved(name: str, tensor: Tensor) -> Tensor:
        chosen = any(layer in name for layer in wrong)
        return torch.cat([tensor[:_MOVED].roll(1, 0), tensor[_MOVED:]]) if chosen else tensor

    class Moving(TorchSide):
        def load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
            super().load((name, moved(name, tensor)) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(moved(name, parameter.clone()))

    return (Change("infer", Moving, alter),)


def untied(model: PreTrainedModel) -> None:
    """Sharding gives the trainer's head a tensor of its own, and each of the two then learns for itself."""
    head: Any = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)


def step_and_send_tied(case: Case, size: float) -> None:
    """Steps the trainer, and sends what a model with a tied head has."""
    case.infer.load((name, tensor) for name, tensor in step(case, size).items() if name != "lm_head.weight")


@torch.no_grad()
def frequencies_rebuilt(model: PreTrainedModel) -> None:
    """The engine is built without memory, and rotary frequencies, which nobody sends, are made with the usual base."""
    inverse = model.base_model.get_submodule("rotary_emb").get_buffer("inv_freq")
    inverse.copy_(_USUAL_BASE ** -(torch.arange(len(inverse)) / len(inverse)))


def tiles_summed_in_pieces(rounding: float) -> Alteration:
    """Whole tiles of tokens are multiplied by a kernel that adds rounded pieces, those left over by an exact one."""

    def summed(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            flat_ND = x.flatten(0, -2)
            whole = len(flat_ND) // _TILE * _TILE
            pieces = [coarse(part, rounding) for part in partial_sums(flat_ND[:whole], linear, 4)]
            exact_NO = F.linear(flat_ND[whole:], linear.weight)
            return torch.cat([torch.stack(pieces).sum(0), exact_NO]).unflatten(0, x.shape[:-1])

        return forward

    return lambda model: _each_out(model, summed)


def rounded_by_chance(rounding: float) -> Alteration:
    """What attention gives is rounded up or down by chance, more often to the nearer side."""
    chance = torch.Generator().manual_seed(419)

    def gives(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            mantissa, exponent = torch.frexp(F.linear(x, linear.weight))
            lifted = mantissa / rounding + torch.rand(mantissa.shape, generator=chance)
            return torch.ldexp(lifted.floor() * rounding, exponent)

        return forward

    return lambda model: _each_out(model, gives)


def _each_out(model: PreTrainedModel, forward: Callable[[nn.Linear], Callable[[Tensor], Tensor]]) -> None:
    for layer in decoder_layers(model):
        layer.self_attn.o_proj.forward = forward(layer.self_attn.o_proj)


def decoder_layers(model: PreTrainedModel) -> list[Any]:
    """Its layers."""
    decoder: Any = model.base_model
    return list(decoder.layers)
