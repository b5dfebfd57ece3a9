"""Second faults of scoring: what a trainer, or an engine that rescores, makes of the model's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.second_layers import Switch
from benchmarks.doctor_faults.sides import HFSide, TorchSide, undoes
from lockstep import align
from lockstep.batch import Batch
from lockstep.distributed.sampling import hidden_scores, token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.backends.in_process import TORCH_TYPES
from lockstep.doctor.base import USUAL, Conditions, DType, Layout
from lockstep.models.attention import Packed
from lockstep.models.heads import PLAIN, inputs
from lockstep.types import SamplingParams


class RawLogprobs(HFSide):
    """Reports what the model said, before the temperature."""

    def logprob(self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions) -> Tensor:
        return super().logprob(logits_MV, token_M, replace(sampling, temperature=1.0), conditions)


class MultipliesTemperature(TorchSide):
    """Multiplies logits by the temperature instead of dividing."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        sampling = batch.sampling or PLAIN
        inverse = sampling if sampling.greedy else replace(sampling, temperature=1 / sampling.temperature)
        return super().logprob(model, replace(batch, sampling=inverse))


class DropsTopK(TorchSide):
    """Normalises over all tokens, whatever could be drawn."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return super().logprob(model, replace(batch, sampling=replace(batch.sampling or PLAIN, top_k=0)))


def canonical_ids(count: int) -> type[HFSide]:
    """Some tokens have the text of others, and text is what arrived: the tokenizer takes the other one."""

    class CanonicalIds(HFSide):
        def token_ids(self, batch: Batch) -> Sequences:
            return [
                torch.where((tokens >= 100) & (tokens < 100 + count), tokens + 150, tokens)
                for tokens in super().token_ids(batch)
            ]

    return CanonicalIds


class FusedHead(TorchSide):
    """Multiplies and sums the head in one kernel, which knows no cap."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        own = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
        head: Any = model.get_output_embeddings()
        states_MD = model.base_model(**inputs(batch)).last_hidden_state[0].index_select(0, align.state_before(own))
        sampling = batch.sampling or PLAIN
        assert sampling.full_support, "the kernel shapes by temperature alone"
        logprob_M, _ = hidden_scores(states_MD, head.weight, batch.tokens[own], sampling)
        return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own, logprob_M)

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        """Those that the kernel sums over."""
        one, model = Batch(tokens_T, torch.tensor([tokens_T.numel()])), self.model()
        head: Any = model.get_output_embeddings()
        with self.computing(self._usual):
            return head(model.base_model(**inputs(one)).last_hidden_state)[0]


class HeadInFP32(TorchSide):
    """The head multiplies in fp32, and its logits stay so."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        own = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
        head: Any = model.get_output_embeddings()
        states_MD = model.base_model(**inputs(batch)).last_hidden_state[0].index_select(0, align.state_before(own))
        with torch.autocast("cpu", enabled=False):
            logits_MV = F.linear(states_MD.float(), head.weight.float())
        logprob_M, _ = token_scores(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
        return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own, logprob_M)


def low_softmax(dtype: DType) -> type[HFSide]:
    """The sum over the vocabulary is kept in a low precision; the token's own logit is not."""

    class LowSoftmax(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            exact_M = super().logprob(logits_MV, token_M, sampling, conditions)
            if undoes(conditions, "softmax"):
                return exact_M
            own_M = logits_MV.float().gather(-1, token_M[:, None])[:, 0] / sampling.divisor
            return own_M - (own_M - exact_M).to(TORCH_TYPES[dtype]).float()

    return LowSoftmax


def late_positions(shift: int) -> type[HFSide]:
    """Packs into one row, where each sequence begins `shift` positions later than the one before it."""

    class LatePositions(HFSide):
        def __init__(self, *values: Any, **named: Any) -> None:
            super().__init__(*values, **named)
            self._usual = replace(self._usual, layout="packed")

        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout != "packed":
                return super().compute_logits(model, sequences, layout)
            lengths = [len(tokens) for tokens in sequences]
            most = self.context - max(lengths) + 1
            positions = [torch.arange(length) + row * shift % most for row, length in enumerate(lengths)]
            logits_NV = model(
                input_ids=torch.cat(list(sequences))[None],
                position_ids=torch.cat(positions)[None],
                attention_mask=_blocks(lengths, model.dtype),
                use_cache=False,
            ).logits[0]
            return torch.split(logits_NV, lengths)

    return LatePositions


def _blocks(lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Causal attention inside each sequence, to be added to scores, [1, 1, N, N]."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (row[:, None] == row[None, :]).tril()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]


def boundaries_lost(share: float) -> type[TorchSide]:
    """In packed rows some sequences have no boundary to the one before."""

    class BoundariesLost(TorchSide):
        def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
            own = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
            row = torch.arange(len(batch))
            begins = ((row * share).long() == ((row - 1) * share).long()) | (row == 0)
            merged = torch.zeros(int(begins.sum()), dtype=torch.int64)
            merged.index_add_(0, begins.long().cumsum(0) - 1, batch.lengths)
            layout = Packed.of(Batch(batch.tokens, merged))
            logits_MV = model(**inputs(batch) | {"layout": layout}, logits_to_keep=align.state_before(own)).logits[0]
            logprob_M, _ = token_scores(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
            return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own, logprob_M)

    return BoundariesLost


def switched(switch: Switch) -> type[TorchSide]:
    """An engine whose router can be told to compute in fp32."""

    class Switched(TorchSide):
        def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
            switch.on = not undoes(conditions, "router")
            return super().model(conditions)

    return Switched


def parallel(ranks: int) -> type[HFSide]:
    """A trainer over several ranks, which says so."""

    class Parallel(HFSide):
        def settings(self) -> Mapping[str, Any]:
            return {**super().settings(), "tensor_parallel_size": ranks}

    return Parallel
