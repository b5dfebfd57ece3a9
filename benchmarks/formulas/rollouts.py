"""Rollouts that every library is given: small, ragged, drawn once from a seed, and like what a run
records.

Four prompts with four responses each. One response calls a tool, whose tokens are not trained on;
one was cut off; one group has equal rewards. Log-probabilities of policy, sampler and reference
differ by what is usual, and at a few tokens by much more. What stands at a tool's tokens is finite
and means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

GROUP = 4
MAX_TOKENS = 32
_LENGTHS = (5, 17, 9, 24, 3, 32, 12, 8, 21, 6, 14, 11, 28, 4, 10, 19)
_TRUNCATED = 5  # the response of MAX_TOKENS tokens
# response: its tool's first token, and the first one after
_TOOLS = {1: (4, 9), 8: (7, 8), 12: (10, 21)}
_SCORES = (1.0, 0.0, 0.25, 1.0, 0.0, 0.1, 0.0, 1.0, 0.7, 0.7, 0.7, 0.7, 0.3, 0.9, 0.05, 0.6)
_MICRO_BATCHES = (6, 16)  # the first response after each
_VOCABULARY = 7


@dataclass(frozen=True)
class Rollouts:
    """Responses, laid end to end; N tokens, B responses.

    Attributes:
        lengths: Tokens of each response, int64 [B].
        mask: Tokens that the policy chose, bool [N].
        logprob: log π, nats [N].
        old_logprob: log π_old, of the policy before the update.
        sampler_logprob: The same by the engine that sampled.
        ref_logprob: log π_ref.
        value: V now.
        old_value: V at the time of the rollout.
        returns: What V should have said.
        advantage: A of each token.
        score: Reward of each response [B].
        response_advantage: A of each response [B].
        final_value: V after each response [B].
        truncated: True for a response that was cut off, bool [B].
        logits: Of a small vocabulary [N, V].
    """

    lengths: Tensor
    mask: Tensor
    logprob: Tensor
    old_logprob: Tensor
    sampler_logprob: Tensor
    ref_logprob: Tensor
    value: Tensor
    old_value: Tensor
    returns: Tensor
    advantage: Tensor
    score: Tensor
    response_advantage: Tensor
    final_value: Tensor
    truncated: Tensor
    logits: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained on."""
        return int(self.mask.sum())

    @property
    def row(self) -> Tensor:
        """The response of each token, int64 [N]."""
        return torch.repeat_interleave(torch.arange(self.num_rows), self.lengths)

    @property
    def lists(self) -> list[int]:
        """Lengths as integers."""
        return self.lengths.tolist()

    def double(self) -> Rollouts:
        """The same numbers in float64."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(
            self, **{name: x.double() for name, x in columns.items() if x.is_floating_point()}
        )

    def select(self, start: int, stop: int) -> Rollouts:
        """Consecutive responses; a column keeps its place in autograd's graph."""
        first = int(self.lengths[:start].sum())
        last = int(self.lengths[:stop].sum())
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        of_rows = ("lengths", "score", "response_advantage", "final_value", "truncated")
        cut = {
            name: x[start:stop] if name in of_rows else x[first:last] for name, x in columns.items()
        }
        return Rollouts(**cut)

    def micro_batches(self) -> Iterator[Rollouts]:
        """Two parts of unequal size, as a learner that is short of memory takes them."""
        start = 0
        for stop in _MICRO_BATCHES:
            yield self.select(start, stop)
            start = stop

    def padded(self, x_N: Tensor) -> Tensor:
        """A column as a grid, [B, T], with zeros after the end of a response."""
        return torch.nn.utils.rnn.pad_sequence(list(x_N.split(self.lists)), batch_first=True)

    def flat(self, x_BT: Tensor) -> Tensor:
        """A grid as a column; the other way round."""
        return torch.cat([row[:length] for row, length in zip(x_BT, self.lists, strict=True)])

    def split(self, x_N: Tensor) -> list[Tensor]:
        """A column as one tensor per response."""
        return list(x_N.split(self.lists))

    def trained(self, x_N: Tensor) -> Tensor:
        """A column with zeros where nothing is trained."""
        return torch.where(self.mask.view(-1, *[1] * (x_N.ndim - 1)), x_N, 0.0)

    def rewards(self) -> Tensor:
        """The score at the last trained token of each response, 0 elsewhere [N]."""
        reward_N = torch.zeros_like(self.logprob)
        for row, score in enumerate(self.score):
            reward_N[((self.row == row) & self.mask).nonzero()[-1]] = score
        return reward_N


@dataclass(frozen=True)
class Answer:
    """What a library computes.

    Attributes:
        value: A loss, or an advantage or weight of each token; None where the value means nothing
            by itself.
        gradient: Of a loss with respect to log-probabilities, values or logits.
    """

    value: Tensor | None
    gradient: Tensor | None = None

    @property
    def known_value(self) -> Tensor:
        """The value, where there is one."""
        assert self.value is not None, "it has a value"
        return self.value

    @property
    def known_gradient(self) -> Tensor:
        """The gradient of a loss."""
        assert self.gradient is not None, "a loss has a gradient"
        return self.gradient


Method = Callable[[Rollouts], Answer]


def of_loss(batch: Rollouts, loss: Callable[[Rollouts], Tensor], by: str = "logprob") -> Answer:
    """A loss and its gradient with respect to the column `by`, summed over micro-batches.

    Args:
        batch: All rollouts.
        loss: The share of one micro-batch, whose denominators are those of all rollouts.
        by: Name of the column.
    """
    leaf = getattr(batch, by).clone().requires_grad_()
    total = sum(
        (loss(part) for part in replace(batch, **{by: leaf}).micro_batches()), torch.zeros(())
    )
    (gradient,) = torch.autograd.grad(total, leaf)
    return Answer(total.detach(), gradient)


def draw_rollouts(seed: int = 55) -> Rollouts:
    """Draws them, rounded to fp32, which is what every side is given."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(_LENGTHS)
    num_tokens = int(lengths.sum())

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(num_tokens, generator=generator, dtype=torch.float64)

    rare = torch.rand(num_tokens, generator=generator, dtype=torch.float64) < 0.3
    surprise = -torch.empty(num_tokens, dtype=torch.float64).exponential_(generator=generator)
    old = torch.where(rare, 2.5 * surprise, 0.15 * surprise) - 1e-4

    def outliers(*gaps: float) -> Tensor:
        """At tokens so unlikely that the larger gaps leave them a probability."""
        moved = torch.zeros(num_tokens, dtype=torch.float64)
        unlikely = (old < -1.7).nonzero().squeeze(-1)
        places = unlikely[torch.randperm(len(unlikely), generator=generator)[: len(gaps)]]
        moved[places] = torch.tensor(gaps, dtype=torch.float64)
        return moved

    starts = lengths.cumsum(0) - lengths
    mask = torch.ones(num_tokens, dtype=torch.bool)
    for row, (first, after) in _TOOLS.items():
        mask[starts[row] + first : starts[row] + after] = False
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    score = torch.tensor(_SCORES, dtype=torch.float64)
    old_value = 0.5 + noise(0.2)
    response_advantage = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    columns = {
        "logprob": (old + noise(0.12) + outliers(1.6, 1.3, -1.5, 0.9, 1.4, 1.5)).clamp(max=-1e-6),
        "old_logprob": old,
        "sampler_logprob": (old + noise(0.02) + outliers(1.1, -0.9, -1.4, 0.8)).clamp(max=-1e-6),
        "ref_logprob": (old + noise(0.3) + outliers(2.4, 1.6, -4.0, 3.4, -1.5)).clamp(max=0.0),
        "value": old_value + noise(0.15),
        "old_value": old_value,
        "returns": score[row] + noise(0.1),
        "advantage": response_advantage[row] + noise(0.3),
        "score": score,
        "response_advantage": response_advantage,
        "final_value": torch.linspace(0.2, 0.9, len(lengths), dtype=torch.float64),
        "logits": 2.0
        * torch.randn(num_tokens, _VOCABULARY, generator=generator, dtype=torch.float64),
    }
    truncated = torch.arange(len(lengths)) == _TRUNCATED
    return Rollouts(
        lengths, mask, truncated=truncated, **{name: x.float() for name, x in columns.items()}
    )
