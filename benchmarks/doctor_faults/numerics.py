"""Types, sums in parts, and chance: how products are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault
from benchmarks.doctor_faults.means import (
    BF16,
    FP16,
    by_blocks,
    coarse,
    compute_by,
    computing,
    integers,
    layers,
    partial_sums,
)
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, drawn
from lockstep import keyed

_RANKS, _TILE = 4, 256
_TYPES = ((2.0**-3, torch.float8_e5m2), (2.0**-4, torch.float8_e4m3fn), (0.0, torch.bfloat16))
"""The least relative rounding at which each is meant."""
_RANK, _STRENGTH = 4, 0.15


def summed(order: Callable[[Tensor], Sequence[int]], share: float, *names: str) -> Alteration:
    """Parts of a product are added one by one in bf16, in an order by the input; none: as usual."""

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        parts = order(x)
        if not parts:
            return F.linear(x, linear.weight, linear.bias)
        products = list(partial_sums(x, linear, len(parts)))
        total = products[parts[0]].bfloat16()
        for part in parts[1:]:
            total = total + products[part].bfloat16()
        output = total.to(products[0].dtype)
        return output if linear.bias is None else output + linear.bias.to(output.dtype)

    return computing(forward, *(names or ("_proj",)), share=share)


def by_rows(step: float) -> Alteration:
    """Another kernel for each number of rows: the more rows, the more pieces, each rounded."""

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        rows = min(x.shape[0], 8)
        if rows == 1:
            return F.linear(x, linear.weight, linear.bias)
        parts = torch.stack([coarse(part, step) for part in partial_sums(x, linear, rows)]).sum(0)
        return parts if linear.bias is None else parts + linear.bias

    return computing(forward, "down_proj")


def in_any_order(step: float) -> Alteration:
    """Pieces are added in the order in which they happen to be ready, and rounded each time."""
    ready = torch.Generator().manual_seed(20)

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        parts = list(partial_sums(x, linear, 8))
        result = torch.zeros_like(parts[0])
        for place in torch.randperm(len(parts), generator=ready).tolist():
            result = coarse(result + parts[place], step)
        return result

    return computing(forward, "down_proj")


def by_ranks(step: float) -> Alteration:
    """A row-parallel product: each rank rounds its part before it is sent."""

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        return torch.stack([coarse(part, step) for part in partial_sums(x, linear, _RANKS)]).sum(0)

    return computing(forward, "o_proj", "down_proj")


def quick_reduce(step: float) -> Alteration:
    """The engine's ranks send their sums as integers with a scale for each block, and so they send the total."""

    def sent(x: Tensor) -> Tensor:
        return by_blocks(x, 8, lambda block: integers(block, step))

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        return sent(torch.stack([sent(part) for part in partial_sums(x, linear, _RANKS)]).sum(0))

    return computing(forward, "o_proj", "down_proj")


def experts_over_ranks(rounding: float) -> Alteration:
    """Experts lie on ranks, and what each of these makes of a token is sent in a low precision."""
    dtype = next(dtype for least, dtype in _TYPES if rounding >= least)

    def forward(experts: Any, states_ND: Tensor, expert_NK: Tensor, weight_NK: Tensor) -> Tensor:
        rank_NK = expert_NK // (experts.num_experts // _RANKS)
        total_ND = torch.zeros_like(states_ND)
        for rank in range(_RANKS):
            weights = weight_NK.masked_fill(rank_NK != rank, 0.0)
            own_ND = type(experts).forward(experts, states_ND, expert_NK, weights)
            total_ND = total_ND + own_ND.to(dtype).to(own_ND.dtype)
        return total_ND

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            compute_by(layer.mlp.experts, forward)

    return alter


def tiles_summed_in_pieces(rounding: float) -> Alteration:
    """Whole tiles of tokens are multiplied by a kernel that adds rounded pieces, those left over by an exact one.

    A tile has more tokens than a sequence.
    """

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        flat_ND = x.flatten(0, -2)
        whole = len(flat_ND) // _TILE * _TILE
        pieces = [coarse(part, rounding) for part in partial_sums(flat_ND[:whole], linear, 4)]
        exact_NO = F.linear(flat_ND[whole:], linear.weight)
        return torch.cat([torch.stack(pieces).sum(0), exact_NO]).unflatten(0, x.shape[:-1])

    return computing(forward, "self_attn.o_proj")


def rounded_by_chance(rounding: float) -> Alteration:
    """What attention gives is rounded up or down by chance, more often to the nearer side."""
    chance = torch.Generator().manual_seed(419)

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        mantissa, exponent = torch.frexp(F.linear(x, linear.weight))
        lifted = mantissa / rounding + torch.rand(mantissa.shape, generator=chance)
        return torch.ldexp(lifted.floor() * rounding, exponent)

    return computing(forward, "self_attn.o_proj")


def in_training_mode(model: PreTrainedModel) -> None:
    """What a training loop calls before its first step, and never takes back."""
    model.train()


def one_dropout(probability: float) -> Alteration:
    """The feed-forward of the second layer drops out; all else is in evaluation mode."""

    def alter(model: PreTrainedModel) -> None:
        dropout = layers(model)[1].resid_mlp_dropout
        dropout.p = probability
        dropout.train()

    return alter


def adapter_dropout(probability: float) -> Alteration:
    """A merged adapter still goes through its own dropout."""

    def alter(model: PreTrainedModel) -> None:
        for place, layer in enumerate(layers(model)):
            for name in ("q_proj", "v_proj", "o_proj"):
                _adapt(layer.self_attn.get_submodule(name), probability, f"{place} {name}")

    return alter


def _adapt(linear: nn.Module, probability: float, key: str) -> None:
    """What the adapter adds is in the weight, so only what dropout does to its input is added here."""
    dropout = nn.Dropout(probability)
    linear.add_module("lora_dropout", dropout)
    dropout.train()
    weight_OI, draw = linear.get_parameter("weight"), keyed.generator("adapter", key)
    down_RI = torch.randn(_RANK, weight_OI.shape[1], generator=draw) / weight_OI.shape[1] ** 0.5
    up_OR = _STRENGTH * torch.randn(weight_OI.shape[0], _RANK, generator=draw)

    def forward(own: Any, states: Tensor) -> Tensor:
        added = F.linear(F.linear(dropout(states) - states, down_RI.to(states.dtype)), up_OR.to(states.dtype))
        return nn.Linear.forward(own, states) + added

    compute_by(linear, forward)


def drops_out_always(probability: float) -> Alteration:
    """A patched attention drops out by the function, whose default is training, so no mode switches it off."""
    return computing(
        lambda linear, x: F.dropout(F.linear(x, linear.weight, linear.bias), probability), "temporal_block.o_proj"
    )


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


FAULTS = (
    # Where several rows are in a pass, the trainer's kernels cut the inner dimension and add up in bf16.
    Fault(23, 1, "batch variance", ("batch_variance",), "train", "share of layers", (1.0, 0.25),
          altered(lambda m: summed(lambda x: range(8) if x.shape[0] > 1 else (), m))),
    Fault(24, 1, "random order of sums", ("nondeterminism",), "infer", "share of layers", (1.0, 0.25),
          altered(lambda m: summed(lambda x: torch.randperm(8).tolist(), m))),
    # The ranks are two halves of the product in one process.
    Fault(28, 1, "sum over two ranks", ("parallel_reduction",), "infer", "share of layers", (1.0, 0.25),
          altered(lambda m: summed(lambda x: range(2), m, "o_proj", "down_proj"), tensor_parallel_size=2)),
    Fault(29, 1, "dropout left on", ("dropout",), "train", "probability", (0.1, 0.01),
          altered(lambda _: in_training_mode), around(attention_dropout=lambda m: m)),
    Fault(33, 1, "one side in fp16", ("dtype",), None, "rounding of the other side", (BF16, FP16),
          lambda m: (Change(dtype="bf16" if m >= BF16 else "fp32", side="train"), Change(dtype="fp16", side="infer")),
          around(infer="hf")),
    Fault(123, 2, "another kernel for each batch size", ("batch_variance",), "infer", "relative step", (2**-4, 2**-8),
          altered(by_rows), around("qwen3, deep", "torch", "hf")),
    Fault(124, 2, "sums in any order", ("nondeterminism",), "train", "relative step", (2**-5, 2**-9),
          altered(in_any_order), around("phi", "torch", "torch", drawn(temperature=0.7, top_p=0.95))),
    Fault(128, 2, "ranks round their sums", ("parallel_reduction",), "train", "relative step", (2**-4, 2**-9),
          altered(by_ranks, tensor_parallel_size=_RANKS), around("ernie", "hf", "torch", drawn(top_k=50))),
    Fault(129, 2, "dropout in one module", ("dropout",), "train", "probability", (0.2, 0.002),
          altered(one_dropout), around("phi", "hf", "torch", drawn(temperature=1.3))),
    Fault(133, 2, "another type", ("dtype",), None, "relative step", (2**-8, 2**-11),
          lambda m: (Change(dtype="bf16" if m > 2**-9 else "fp16", side="infer"),),
          around("olmo", "hf", "hf", drawn(temperature=0.7, top_p=0.95))),
    Fault(218, 3, "dropout of a merged adapter", ("dropout",), "train", "probability", (0.3, 0.002),
          altered(adapter_dropout), around("llama", "hf", "torch", drawn(temperature=1.2))),
    Fault(317, 4, "noise of training", ("dropout", "nondeterminism", "routing"), "train", "relative noise",
          (0.1, 0.005), altered(lambda _: in_training_mode),
          around("minimax", "hf", "torch", drawn(temperature=0.85), router_jitter_noise=lambda m: m)),
    Fault(318, 4, "experts over ranks", ("parallel_reduction",), "train", "rounding", (2**-4, 2**-8),
          altered(experts_over_ranks, tensor_parallel_size=_RANKS, expert_parallel=True),
          around("phi moe", "torch", "hf")),
    Fault(418, 5, "whole tiles by another kernel", ("batch_variance",), "train", "rounding", (2**-3, 2**-7),
          altered(tiles_summed_in_pieces), around("diffllama", "hf", "hf")),
    Fault(419, 5, "rounded by chance", ("nondeterminism",), "infer", "rounding", (2**-5, 2**-9),
          altered(rounded_by_chance), around("granite moe", "torch", "hf", drawn(temperature=0.75))),
    Fault(508, 6, "dropout in every mode", ("dropout", "nondeterminism"), "train", "probability", (0.2, 0.005),
          altered(drops_out_always), around("recurrent gemma", "torch", "hf", drawn(top_k=60))),
    Fault(510, 6, "sums sent as integers", ("parallel_reduction",), "infer", "step, of a block's largest",
          (1 / 7, 1 / 127), altered(quick_reduce, tensor_parallel_size=_RANKS,
                                    quick_reduce_quantization=lambda m: f"INT{round(1 / m).bit_length() + 1}"),
          around("jamba", "hf", "torch")),
    Fault(710, 8, "noise on the embedding", ("dropout", "embedding", "nondeterminism"), "train", "strength",
          (3.0, 0.15), altered(noisy_embedding), around("youtu", "hf", "torch", drawn(temperature=0.9, top_p=0.96)),
          split="held-out"),
)  # fmt: skip
