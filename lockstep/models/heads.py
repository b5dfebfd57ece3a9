"""Models as learners see them: a ragged batch in, one number per own token out. A head is a plug-in on a backbone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep import align, keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import hidden_scores, token_scores
from lockstep.losses.base import Outputs
from lockstep.models.attention import Packed
from lockstep.types import SamplingParams

PLAIN = SamplingParams(max_tokens=1)
"""The model's own distribution: what a batch without sampling parameters is scored under."""

_LARGE = 1e4


def canonical(name: str) -> str:
    """A parameter's name in the Hugging Face checkpoint, from its name in a `LogitsHead`."""
    return name.removeprefix("lm.")


class LogitsHead(nn.Module):
    """A causal language model that scores the masked tokens of a batch."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm
        self._fused = logits_are_products(lm)

    def forward(self, batch: Batch) -> Outputs:
        """log π(x_t | x_<t) and the entropy at masked tokens; the vocabulary is only computed for these."""
        own = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
        token_M, sampling = batch.tokens[own], batch.sampling or PLAIN
        if self._fused and sampling.full_support:
            head = self.lm.get_output_embeddings()
            assert isinstance(head, nn.Linear)
            hidden_MD = _states(self.lm.base_model, batch).index_select(0, align.state_before(own))
            logprob_M, entropy_M = hidden_scores(hidden_MD, head.weight, token_M, sampling)
        else:
            logits_MV = self.lm(**inputs(batch), logits_to_keep=align.state_before(own)).logits[0]
            logprob_M, entropy_M = token_scores(logits_MV, token_M, sampling)
        return Outputs(logprob=_spread(logprob_M, own, batch), entropy=_spread(entropy_M, own, batch))


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
        hidden_ND = _states(self.backbone, batch)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            output_N = self.value(hidden_ND.float()).squeeze(-1)
        own = align.described(batch)
        return Outputs(
            value=_spread(output_N[align.state_before(own)], own, batch),
            final_value=output_N[align.state_after(batch)],
        )


@torch.no_grad()
def logits_are_products(lm: PreTrainedModel) -> bool:
    """Whether logits are the last hidden states times the head's weight, without bias, cap or factor.

    It is tried, on a few tokens: what the head is given must be what the backbone gives, and what the head gives must
    come out as it is, also where it is so large that a cap would show. For that it is replaced by numbers up to 10,000.
    """
    head, batch = lm.get_output_embeddings(), Batch(torch.arange(3, device=lm.device), torch.tensor([3]))
    if type(head) is not nn.Linear or head.bias is not None or "forward" in vars(head):
        return False
    seen: list[Tensor] = []

    def replaced(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        ramp = torch.linspace(-_LARGE, _LARGE, output.shape[-1], device=output.device)
        seen.extend([inputs[0][0], ramp.to(output.dtype).expand_as(output)])
        return seen[1]

    lm.eval()
    hook = head.register_forward_hook(replaced)
    try:
        logits = lm(**inputs(batch)).logits[0]
    finally:
        hook.remove()
    return torch.allclose(seen[0], _states(lm.base_model, batch)) and torch.equal(logits, seen[1][0])


def inputs(batch: Batch) -> dict[str, Any]:
    """A batch as `transformers` models take it: one row, every sequence blind to its neighbours."""
    return {
        "input_ids": batch.tokens[None],
        "position_ids": batch.position[None],
        "use_cache": False,
        "layout": Packed.of(batch),
    }


def _states(backbone: nn.Module, batch: Batch) -> Tensor:
    """The last hidden states [N, D]."""
    return backbone(**inputs(batch)).last_hidden_state[0]


def _spread(column_M: Tensor, own_M: Tensor, batch: Batch) -> Tensor:
    """Puts the numbers of some tokens back among all tokens, 0 elsewhere. Returns [N]."""
    return column_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, column_M)
