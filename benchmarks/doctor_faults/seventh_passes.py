"""Seventh faults of how a pass is made: shared prompts, windows in blocks, decoding in a low type, boundaries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.doctor_faults.faults_passes import Decodes, keeping
from benchmarks.doctor_faults.fourth_scoring import column, own_tokens
from benchmarks.doctor_faults.kept import KnowsPrompts
from benchmarks.doctor_faults.means import is_chosen, type_with
from benchmarks.doctor_faults.sides import HFSide, TorchSide
from lockstep import align
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_scores
from lockstep.doctor.backends.hf import Sequences
from lockstep.doctor.base import Layout
from lockstep.models.attention import Packed
from lockstep.models.heads import PLAIN, inputs

_GROUP = 4


def prompt_of_the_group(share: float) -> type[KnowsPrompts]:
    """To read a group's prompt once, the trainer takes the state behind it from the first row of the group.

    Rows have been put in another order before, so that some rows of a group have other prompts.
    """

    class PromptOfTheGroup(KnowsPrompts):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            logits = super().compute_logits(model, sequences, layout)
            if layout != "padded":
                return logits
            lasts = [max(self.prompt_length(tokens) - 1, 0) for tokens in sequences]
            mended = [own.clone() for own in logits]
            for place, (own, tokens) in enumerate(zip(mended, sequences, strict=True)):
                first = place // _GROUP * _GROUP if is_chosen(tokens, share) else place
                own[lasts[place]] = logits[first][lasts[first]]
            return mended

    return PromptOfTheGroup


def windows_in_blocks(block: int) -> type[HFSide]:
    """The trainer's block-sparse kernel lets a token see the whole block of keys that its window begins in."""

    class WindowsInBlocks(HFSide):
        def compute_logits(self, model: PreTrainedModel, sequences: Sequences, layout: Layout) -> Sequences:
            if layout == "packed":
                return super().compute_logits(model, sequences, layout)
            padded = pad_sequence(list(sequences), batch_first=True)
            place = torch.arange(padded.shape[1])
            begins = (place - model.config.sliding_window + 1).clamp(min=0) // block * block
            causal = place[None] <= place[:, None]
            masks = {
                "full_attention": _added(causal, model.dtype),
                "sliding_attention": _added(causal & (place[None] >= begins[:, None]), model.dtype),
            }
            logits_BTV = model(input_ids=padded, attention_mask=masks, use_cache=False).logits
            return [logits[: len(tokens)] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    return WindowsInBlocks


def _added(visible_TT: Tensor, dtype: torch.dtype) -> Tensor:
    """Pads lie behind all that sees, so that one mask is right for each row."""
    return torch.zeros(visible_TT.shape, dtype=dtype).masked_fill(~visible_TT, torch.finfo(dtype).min)[None, None]


def shares_in_low_type(error: float) -> type[TorchSide]:
    """The decoding kernel multiplies values by shares that it has put into fp8; the sum of the shares is exact."""
    dtype = type_with(error)

    class Rounded(Decodes):
        def decoded(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
            shared = query.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
            hidden = ~self._find_visible(None)[:, None, None]
            scores = (scaling * query @ keys.mT).masked_fill(hidden, float("-inf"))
            above = (scores - scores.amax(-1, keepdim=True)).exp()
            return (above.to(dtype).to(above.dtype) @ values) / above.sum(-1, keepdim=True)

    return keeping(Rounded)


def boundaries_of_padded_lengths(multiple: int) -> type[TorchSide]:
    """Packed sequences lie end to end, and attention is told boundaries as if each were padded to a multiple."""

    class BoundariesOfPaddedLengths(TorchSide):
        def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
            own, ends = own_tokens(batch), (batch.lengths + -batch.lengths % multiple).cumsum(0)
            ends = ends.clamp(max=batch.tokens.numel())
            said = ends.diff(prepend=torch.zeros(1, dtype=ends.dtype))
            layout = Packed.of(Batch(batch.tokens, said[said > 0]))
            logits_MV = model(**inputs(batch) | {"layout": layout}, logits_to_keep=align.state_before(own)).logits[0]
            logprob_M, _ = token_scores(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
            return column(logprob_M, own, batch)

    return BoundariesOfPaddedLengths
