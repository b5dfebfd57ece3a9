"""Held-out faults of what is drawn and what is scored: supports, repeats, prompts, logits of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MinPLogitsWarper, NoRepeatNGramLogitsProcessor, PreTrainedModel

from benchmarks.doctor_faults.means import head_of, is_chosen, type_with
from benchmarks.doctor_faults.sides import HFSide, undoes
from benchmarks.doctor_faults.third_scoring import drawing_through
from lockstep.batch import Batch
from lockstep.doctor.base import USUAL, BackendScores, Conditions

Drawn = tuple[Tensor, Tensor]
_BOS = 1
_RANKS = 2


def least_of_the_likeliest(share: float) -> type[HFSide]:
    """The model's generation_config has a min_p, which cuts off what is so much unlikelier than the likeliest token."""

    return drawing_through(lambda *_: MinPLogitsWarper(share))


def no_repeats(length: int) -> type[HFSide]:
    """The model's generation_config forbids to repeat so many tokens in a row, and the engine obeys."""

    return drawing_through(lambda *_: NoRepeatNGramLogitsProcessor(length))


def begins_twice(share: float) -> type[HFSide]:
    """The trainer tokenises prompts whose text, for some, begins with BOS already; its tokenizer adds another one."""

    class BeginsTwice(HFSide):
        def score(self, batch: Batch, conditions: Conditions = USUAL) -> BackendScores:
            more = [int(is_chosen(tokens, share)) for tokens in batch.sequences()]
            masks = [F.pad(mask, (n, 0)) for mask, n in zip(batch.sequences("mask"), more, strict=True)]
            anew = [F.pad(tokens, (n, 0), value=_BOS) for tokens, n in zip(batch.sequences(), more, strict=True)]
            lengths = batch.lengths + torch.tensor(more)
            own = Batch(torch.cat(anew), lengths, {"mask": torch.cat(masks)}, sampling=batch.sampling)
            scores = super().score(own, conditions)
            columns = zip(scores.logprob.split(lengths.tolist()), more, strict=True)
            return replace(scores, logprob=torch.cat([column[n:] for column, n in columns]))

    return BeginsTwice


def gathered_in_low_type(rounding: float) -> type[HFSide]:
    """The head's rows lie on two ranks, each of which sends its logits in a low type."""
    dtype = type_with(rounding)

    def gathered(head: nn.Linear, states: Tensor) -> Tensor:
        shards = [shard.to(dtype) for shard in F.linear(states, head.weight, head.bias).tensor_split(_RANKS, -1)]
        return torch.cat(shards, -1).to(states.dtype)

    class GatheredInLowType(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "tensor_parallel_size": _RANKS}

        def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
            model = super().model(conditions)
            head = head_of(model)
            vars(head)["forward"] = partial(nn.Linear.forward if undoes(conditions, "head") else gathered, head)
            return model

    return GatheredInLowType
