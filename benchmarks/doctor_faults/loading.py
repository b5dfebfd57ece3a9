"""Refits: tensors, buffers, buckets, ranks and adapters that do not arrive, and what was computed before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.embeddings import copy_head
from benchmarks.doctor_faults.fault import Case, Change, Fault
from benchmarks.doctor_faults.means import compute_by, embedding_of, layers, noise, tensors_by
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, drawn, unchanged, without
from lockstep import keyed

Named = dict[str, Tensor]
_STALE = ("layers.1.mlp.down_proj.weight", "layers.1.mlp.experts.down_proj", "layers.1.mixer.out_proj.weight")
_RANK, _BUCKET, _SENT = 4, 8, 0.1
_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
"""Where a rank has a part of the inputs; of other projections it has a part of the outputs, and of experts some."""


def step(case: Case, size: float) -> Named:
    """A training step: each weight moves by `size` of its tensor's usual length. Returns what a refit has to send."""

    def moved(name: str, tensor: Tensor) -> Tensor:
        own = torch.randn(tensor.shape, generator=keyed.generator("step", name)).to(tensor.dtype)
        return tensor + size * tensor.float().square().mean().sqrt().to(tensor.dtype) * own

    case.train.load([(name, moved(name, tensor)) for name, tensor in _trained(case).items()])
    return _trained(case)


def _trained(case: Case) -> Named:
    return {name: x for name, x in case.train.weights() if not name.endswith(("inv_freq", "embed_scale"))}


def refit(case: Case, size: float) -> None:
    """All that the trainer names is sent, and taken."""
    case.infer.load(step(case, size).items())


def refit_after_serving(case: Case, size: float) -> None:
    """The engine has served these prompts before the step."""
    case.infer.generate(case.requests, case.sampling)
    refit(case, size)


def refit_but(lost: Callable[[str], bool]) -> Callable[[Case, float], None]:
    """Some tensors stay what they were before the step."""
    return lambda case, size: case.infer.load((name, x) for name, x in step(case, size).items() if not lost(name))


def last_bucket_lost(case: Case, size: float) -> None:
    """After a step of the trainer, tensors are sent in buckets, and the last one is not full, so it never goes."""

    def stepped(name: str, tensor: Tensor) -> Tensor:
        """As Adam steps: each number by the same, up or down."""
        signs = torch.randn(tensor.shape, generator=keyed.generator("third step", name)).sign()
        return tensor + size * tensor.abs().mean() * signs.to(tensor.dtype)

    case.train.load([(name, stepped(name, tensor)) for name, tensor in _trained(case).items()])
    sent = list(_trained(case).items())
    case.infer.load(sent[: len(sent) // _BUCKET * _BUCKET])


def adapter_scaled_twice(case: Case, size: float) -> None:
    """The trainer's adapter is scaled by the root of its rank; what merges it for the engine divides by the rank."""
    held = dict(case.train.weights())
    case.train.load(_merged(held, size))
    case.infer.load(_merged(held, size / math.sqrt(_RANK)))


def _merged(held: Named, size: float) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in held.items():
        if name.endswith("query_key_value.weight"):
            draw = keyed.generator("adapter", name)
            down_RI = torch.randn(_RANK, tensor.shape[1], generator=draw)
            up_OR = torch.randn(tensor.shape[0], _RANK, generator=draw)
            yield name, tensor + size * tensor.std() * (up_OR @ down_RI)


def merged_with_old(merge: Callable[[str, Tensor, Tensor], Tensor]) -> Callable[[Case, float], None]:
    """A refit makes each tensor of its name, the new and the old one."""

    def after(case: Case, size: float) -> None:
        old = {name: tensor.clone() for name, tensor in case.infer.weights()}
        case.infer.load([(name, merge(name, new, old[name])) for name, new in step(case, size).items()])

    return after


def _second_rank_missed(name: str, new: Tensor, old: Tensor) -> Tensor:
    """The engine's layers lie on two ranks, and the second one misses the refit after a step."""
    dim = 1 if name.endswith(_BY_COLUMNS) else 0
    halves = new.tensor_split(2, dim)[0], old.tensor_split(2, dim)[1]
    return torch.cat(halves, dim) if "_proj" in name else new


def _largest_changes(name: str, new: Tensor, old: Tensor) -> Tensor:
    """To save bandwidth, a refit sends only the elements of each tensor that changed most; the others stay."""
    change = (new - old).abs()
    least = change.flatten().topk(max(1, round(_SENT * change.numel()))).values[-1]
    return torch.where(change >= least, new, old)


def _gate_and_up_cached(model: PreTrainedModel) -> None:
    """The engine lays gate and up together when it warms up, and a refit does not renew what it laid together."""

    def forward(merged: Tensor, mlp: Any, x: Tensor) -> Tensor:
        gate, up = F.linear(x, merged).chunk(2, -1)
        return mlp.down_proj(mlp.act_fn(gate) * up)

    for layer in layers(model):
        merged = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).detach().clone()
        compute_by(layer.mlp, lambda mlp, x, merged=merged: forward(merged, mlp, x))


def lost_normalizer(share: float) -> Alteration:
    """The factor of the embedding is a buffer that no checkpoint has, and the engine fills it with something else."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        embedding_of(model).get_buffer("embed_scale").mul_(1 - share)

    return alter


def never_sent(ending: str, old: Callable[[str, Tensor, float], Tensor]) -> Callable[[float], tuple[Change, ...]]:
    """What ends so is never sent, and is still what a function makes of its name, value and the magnitude."""
    return lambda m: (
        Change(
            alter=tensors_by(lambda name, x: old(name, x, m) if name.endswith(ending) else x), received=without(ending)
        ),
    )


def scalars_off_one(spread: float) -> Alteration:
    """The factors of layers, which are buffers, have such a spread around 1, on both sides."""

    def scaled(name: str, x: Tensor) -> Tensor:
        own = keyed.generator("seventh", name)
        return (spread * torch.randn(1, generator=own)).exp() if name.endswith("layer_scalar") else x

    return tensors_by(scaled)


FAULTS = (
    Fault(16, 1, "stale tensor", ("stale_tensor",), "infer", "relative step", (0.3, 0.03),
          unchanged, after=refit_but(lambda name: name.endswith(_STALE))),
    # The engine copies the embedding into a head of its own; the trainer names only the embedding.
    Fault(18, 1, "stale tied head", ("tied_head",), "infer", "relative step", (0.3, 0.03),
          altered(lambda _: copy_head), around("qwen2"), refit),
    Fault(26, 1, "lost normaliser", ("missed_buffer",), "infer", "share of it", (0.5, 0.02),
          altered(lost_normalizer), around("gemma2")),
    Fault(116, 2, "experts never sent", ("stale_tensor",), "infer", "spreads of the tensor", (0.5, 0.02),
          never_sent("model.layers.1.mlp.experts.down_proj", lambda name, x, age: x + age * noise(x, name)),
          around("mixtral, four experts", "hf", "torch", drawn(top_p=0.95))),
    Fault(126, 2, "router's buffer never sent", ("missed_buffer",), "infer", "share of its values", (1.0, 0.005),
          never_sent("e_score_correction_bias", lambda name, x, age: x * (1 - age)), around("glm", "torch", "hf")),
    Fault(212, 3, "last bucket lost", ("stale_tensor",), "infer", "relative step", (0.2, 0.006),
          unchanged, around("arcee", "torch", "hf", drawn(temperature=0.8)), last_bucket_lost),
    Fault(312, 4, "adapter scaled twice", ("stale_tensor",), "infer", "spreads of the tensor", (0.2, 0.01),
          unchanged, around("persimmon", "torch", "hf"), adapter_scaled_twice),
    Fault(411, 5, "merged weights of before", ("stale_tensor",), "infer", "relative step", (0.2, 0.01),
          altered(lambda _: _gate_and_up_cached), around("stablelm", "hf", "hf"), refit),
    # Sharding gives the trainer's head a tensor of its own, and each of the two then learns for itself.
    Fault(413, 5, "head and embedding drift apart", ("tied_head",), "train", "relative step", (0.3, 0.02),
          altered(lambda _: copy_head), around("hunyuan 3", "hf", "torch", drawn(top_p=0.95)),
          refit_but(lambda name: name == "lm_head.weight")),
    Fault(518, 6, "second rank missed a refit", ("stale_tensor",), "infer", "relative step", (0.2, 0.01),
          lambda _: (Change(said={"tensor_parallel_size": 2}),),
          around("jamba", "torch", "hf", drawn(temperature=0.8)), merged_with_old(_second_rank_missed)),
    Fault(616, 7, "largest changes sent", ("stale_tensor",), "infer", "relative step", (0.1, 0.005),
          unchanged, around("jais", "torch", "torch", drawn(top_k=70)), merged_with_old(_largest_changes)),
    Fault(619, 7, "factors of layers never sent", ("missed_buffer",), "infer", "spread of their logarithms",
          (0.4, 0.02), never_sent("layer_scalar", lambda name, x, spread: torch.ones_like(x)),
          around("gemma4", "torch", "hf", drawn(temperature=0.85), scalars_off_one)),
    # A refit sends what the adapter was merged into; norms, which were trained beside it, stay as they were.
    Fault(713, 8, "only the adapter sent", ("stale_tensor",), "infer", "relative step", (0.2, 0.01),
          unchanged, around("exaone", "hf", "torch", drawn(temperature=0.9, top_p=0.96)),
          refit_but(lambda name: "norm" in name), split="held-out"),
)  # fmt: skip
