"""Tap on the Megatron learner: hooks on Megatron's modules, with the cut names of `transformers`.

Megatron fuses tensors with the same input: queries, keys and values by group, gate and up one after
the other. The layout is implemented here independently of the learner, so that a mistake in the
learner's layout is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.learners.megatron.model import PipelineStage
from lockstep.learners.rank import RankLearner
from lockstep_doctor.cuts import CutPoint, End
from lockstep_doctor.taps.rank import LAST, RankTap, gather_parts

_OUTSIDE: Mapping[tuple[str, End], CutPoint] = {
    ("gpt.embedding.word_embeddings", "out"): CutPoint("embed"),
    ("gpt.decoder.final_layernorm", "in"): CutPoint("resid_out"),
    ("gpt.decoder.final_layernorm", "out"): LAST,
}
_INSIDE: Mapping[tuple[str, End], tuple[str, ...]] = {
    ("input_layernorm", "in"): ("resid_in",),
    ("input_layernorm", "out"): ("attn_norm",),
    ("self_attention.linear_qkv", "out"): ("q", "k", "v"),
    ("self_attention.q_layernorm", "out"): ("self_attn.q_norm",),
    ("self_attention.k_layernorm", "out"): ("self_attn.k_norm",),
    ("self_attention.linear_proj", "in"): ("attn",),
    ("self_attention.linear_proj", "out"): ("o",),
    ("pre_mlp_layernorm", "in"): ("resid_mid",),
    ("pre_mlp_layernorm", "out"): ("mlp_norm",),
    ("mlp.linear_fc1", "out"): ("gate", "up"),
    ("mlp.linear_fc2", "in"): ("act",),
    ("mlp.linear_fc2", "out"): ("down",),
}
"""Stages at the inputs and outputs of a layer's modules."""

_LAYER = re.compile(r"gpt\.decoder\.layers\.(\d+)\.(.+)")


def tap_megatron(learner: RankLearner, name: str, neighbors: int = 0) -> RankTap:
    """Returns the tap on a rank of the Megatron learner; see `RankTap`."""
    stage = learner.model
    ranks = learner._ranks
    assert isinstance(stage, PipelineStage), "a learner of Megatron"
    heads = stage.config.num_attention_heads // (stage.config.num_query_groups or 1)
    views: Mapping[int, Callable[[Tensor], Sequence[Tensor]]] = {
        0: lambda x: (),
        1: lambda x: (x,),
        2: lambda x: x.chunk(2, -1),
        3: lambda x: _split_groups(x, heads, int(stage.config.kv_channels or 0)),
    }

    def name_values(path: str, end: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
        if isinstance(value, tuple):
            first = value[0]
        else:
            first = value
        found = _LAYER.fullmatch(path)
        if found is None:
            yield from ((cut, first) for cut in (_OUTSIDE.get((path, end)),) if cut is not None)
            return
        names = _INSIDE.get((found[2], end), ())
        for stage_name, x in zip(names, views[len(names)](first), strict=True):
            yield CutPoint(stage_name, stage.first_layer + int(found[1])), x

    def gather_head() -> Tensor:
        parts = gather_parts(ranks, stage.head_weight.detach())
        return torch.cat(parts)[: stage.vocabulary]

    outside = {path for path, _ in _OUTSIDE}
    inside = {path for path, _ in _INSIDE}
    paths = list[str]()
    for path, module in stage.named_modules():
        found = _LAYER.fullmatch(path)
        has_cuts = path in outside or (found is not None and found[2] in inside)
        if has_cuts and any(True for _ in module.parameters()):
            paths.append(path)
    activations = {CutPoint("mlp.act_fn", layer) for layer in range(stage.config.num_layers)}
    hidden = frozenset({CutPoint("rotary_emb"), *activations})
    return RankTap(learner, paths, name_values, gather_head, hidden, name, neighbors)


def _split_groups(x: Tensor, heads: int, size: int) -> Sequence[Tensor]:
    """Splits a fused tensor into queries, keys and values; each group has the queries of its heads,
    one key and one value.
    """
    groups = x.unflatten(-1, (-1, heads + 2, size))
    return groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]
