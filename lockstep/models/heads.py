"""Models as learners see them: a ragged batch in, one number per own token out. A head is a plug-in on a backbone."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep import align, keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import token_logprobs
from lockstep.losses.base import Outputs
from lockstep.models.attention import Packed
from lockstep.types import SamplingParams

PLAIN = SamplingParams(max_tokens=1)
"""The model's own distribution: what a batch without sampling parameters is scored under."""


def canonical(name: str) -> str:
    """A parameter's name in the Hugging Face checkpoint, from its name in a `LogitsHead`."""
    return name.removeprefix("lm.")


class LogitsHead(nn.Module):
    """A causal language model that scores the masked tokens of a batch."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, batch: Batch) -> Outputs:
        """log π(x_t | x_<t) at masked tokens; the vocabulary is only computed for these."""
        own = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
        logits_MV = self.lm(
            input_ids=batch.tokens[None],
            position_ids=batch.position[None],
            use_cache=False,
            layout=Packed.of(batch),
            logits_to_keep=align.state_before(own),
        ).logits[0]
        logprob_M = token_logprobs(logits_MV, batch.tokens[own], batch.sampling or PLAIN)
        return Outputs(logprob=_spread(logprob_M, own, batch))


class ValueHead(nn.Module):
    """A backbone with one linear unit, fp32 and without dropout: V(s), read one token to the left of what it values."""

    def __init__(self, backbone: PreTrainedModel, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        size = int(backbone.config.get_text_config().hidden_size)
        self.value = nn.Linear(size, 1)
        with torch.no_grad():
            # A final norm leaves states of length about √size, so first values have a spread of about 0.1.
            self.value.weight.normal_(0.0, 0.1 / math.sqrt(size), generator=keyed.generator("value head", seed))
            self.value.bias.zero_()

    def forward(self, batch: Batch) -> Outputs:
        hidden_ND = self.backbone(
            input_ids=batch.tokens[None],
            position_ids=batch.position[None],
            use_cache=False,
            layout=Packed.of(batch),
        ).last_hidden_state[0]
        with torch.autocast(hidden_ND.device.type, enabled=False):
            output_N = self.value(hidden_ND.float()).squeeze(-1)
        own = align.described(batch)
        return Outputs(
            value=_spread(output_N[align.state_before(own)], own, batch),
            final_value=output_N[align.state_after(batch)],
        )


def _spread(column_M: Tensor, own_M: Tensor, batch: Batch) -> Tensor:
    """Puts the numbers of some tokens back among all tokens, 0 elsewhere. Returns [N]."""
    return column_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, column_M)
