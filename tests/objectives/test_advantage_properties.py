"""Laws that hold for every batch: of advantages, of the surrogate's gradient, of KL estimates, of summed losses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.batch import Batch
from lockstep.losses.base import Loss, Outputs
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.metrics import merge_metrics
from lockstep.objectives.advantage import gae
from lockstep.objectives.divergence import k2, k3
from lockstep.objectives.policy import clip_surrogate

LAW = settings(deadline=None, max_examples=60)
PROBABILITY = st.floats(0.0, 1.0, allow_subnormal=False)
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=6)


@dataclass(frozen=True)
class Rollouts:
    """Random ragged sequences, junk excepted."""

    lengths: Tensor
    reward: Tensor
    value: Tensor
    mask: Tensor
    final: Tensor

    def gae(self, gamma: float, lam: float) -> Tensor:
        return gae(self.reward, self.value, self.mask, self.lengths, gamma=gamma, lam=lam, final_value_B=self.final)

    def sequences(self) -> list[Rollouts]:
        columns = zip(*(x.split(self.lengths.tolist()) for x in (self.reward, self.value, self.mask)), strict=True)
        return [
            Rollouts(torch.tensor([len(r)]), r, v, m, f)
            for (r, v, m), f in zip(columns, self.final.split(1), strict=True)
        ]

    def laid_out(self, rows: list[int]) -> Rollouts:
        parts = [self.sequences()[row] for row in rows]
        return Rollouts(
            *(torch.cat(x) for x in zip(*((p.lengths, p.reward, p.value, p.mask, p.final) for p in parts), strict=True))
        )


@st.composite
def rollouts(draw: st.DrawFn) -> Rollouts:
    lengths = torch.tensor(draw(LENGTHS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    n, share = int(lengths.sum()), draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    reward, value = torch.randn(2, n, generator=generator)
    mask = torch.rand(n, generator=generator) < share
    return Rollouts(lengths, reward, value, mask, torch.randn(len(lengths), generator=generator))


def same(actual: Tensor, expected: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=atol)


@LAW
@given(rollouts(), PROBABILITY, PROBABILITY)
def test_gae_is_the_discounted_sum_of_td_errors(batch: Rollouts, gamma: float, lam: float) -> None:
    """A_t = Σ_k (γλ)^k δ_{t+k}, written as a matrix over each sequence's trainable tokens."""
    for sequence, advantage in zip(batch.sequences(), batch.gae(gamma, lam).split(batch.lengths.tolist()), strict=True):
        reward, value = sequence.reward[sequence.mask].double(), sequence.value[sequence.mask].double()
        delta = reward + gamma * torch.cat([value[1:], sequence.final[: len(value)].double()])[: len(value)] - value
        k = torch.arange(len(delta))[None, :] - torch.arange(len(delta))[:, None]
        power = torch.where(k >= 0, (gamma * lam) ** k.clamp(min=0).double(), 0.0)
        same(advantage[sequence.mask], power @ delta)
        assert advantage[~sequence.mask].eq(0).all()


@LAW
@given(rollouts())
def test_lambda_one_is_monte_carlo(batch: Rollouts) -> None:
    """With γ = λ = 1, A_t + V_t is what is still to come."""
    for sequence, advantage in zip(batch.sequences(), batch.gae(1.0, 1.0).split(batch.lengths.tolist()), strict=True):
        reward = sequence.reward[sequence.mask].double()
        to_come = reward.flip(0).cumsum(0).flip(0) + sequence.final.double()
        same(advantage[sequence.mask] + sequence.value[sequence.mask], to_come)


@LAW
@given(rollouts(), st.randoms(use_true_random=False))
def test_neighbours_and_order_do_not_matter(batch: Rollouts, random) -> None:
    """Alone, or packed in any order: each sequence gets the same advantages."""
    order = random.sample(range(len(batch.lengths)), len(batch.lengths))
    alone = [sequence.gae(0.99, 0.95) for sequence in batch.sequences()]
    same(batch.gae(0.99, 0.95), torch.cat(alone))
    same(batch.laid_out(order).gae(0.99, 0.95), torch.cat([alone[row] for row in order]))


@LAW
@given(rollouts(), st.integers(0, 40), st.integers(0, 40))
def test_padding_does_not_matter(batch: Rollouts, left: int, right: int) -> None:
    """Masked-off tokens with junk, on both sides and wherever the mask is off."""
    padded = []
    for s in batch.sequences():
        pad = torch.nn.functional.pad
        padded.append(
            Rollouts(
                s.lengths + left + right,
                pad(s.reward.where(s.mask, torch.inf), (left, right), value=torch.nan),
                pad(s.value.where(s.mask, torch.nan), (left, right), value=999.0),
                pad(s.mask, (left, right), value=False),
                s.final,
            ).gae(0.99, 0.95)[left : left + len(s.mask)]
        )
    same(torch.cat(padded), batch.gae(0.99, 0.95))


@LAW
@given(st.integers(0, 2**32), st.sampled_from([None, 3.0]))
def test_gradient_at_ratio_one_is_the_plain_policy_gradient(seed: int, dual_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    advantage, old = torch.randn(2, 20, generator=generator)
    logprob = old.clone().requires_grad_()
    loss, clipped = clip_surrogate(logprob, old, advantage, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
    loss.sum().backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -advantage)  # of −Σ A·log π
    assert not clipped.any()


@LAW
@given(
    st.lists(st.tuples(st.floats(-50, 0, width=32), st.floats(-50, 0, width=32)), min_size=1),
    st.sampled_from([k2, k3]),
)
def test_kl_estimates_are_not_negative(pairs, estimate) -> None:
    logprob, ref = torch.tensor(pairs).T
    assert estimate(logprob, ref).ge(0).all()
    assert estimate(ref, ref).eq(0).all()


def learner_batch(seed: int, lengths: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(lengths)
    names = ("old_logprob", "advantage", "weight", "ref_logprob", "old_value", "return", "head")
    columns = {name: torch.randn(num_tokens, generator=generator) * 0.5 for name in names}
    mask = torch.rand(num_tokens, generator=generator) < 0.6
    return Batch(torch.zeros(num_tokens, dtype=torch.int64), torch.tensor(lengths), {**columns, "mask": mask})


def over(pieces: list[Batch], loss: Loss) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Summed loss, its gradient with respect to what the head said of each token, and merged metrics."""
    heads = [piece["head"].clone().requires_grad_() for piece in pieces]
    results = [loss(Outputs(logprob=head, value=head), piece) for head, piece in zip(heads, pieces, strict=True)]
    total = torch.stack([total for total, _ in results]).sum()
    gradients = torch.autograd.grad(total, heads)
    return total.detach(), torch.cat(gradients), merge_metrics(metrics for _, metrics in results).floats()


@LAW
@given(st.integers(0, 2**32), LENGTHS, st.integers(1, 4))
def test_micro_batches_add_up(seed: int, lengths: list[int], size: int) -> None:
    """However a batch is cut, summed losses, gradients and merged metrics are the same."""
    batch = learner_batch(seed, lengths)
    assume(batch.mask.sum() > 1)  # one return has no variance to explain
    for loss in (ClippedSurrogate(0.2, 0.2, 2.0, 0.1), ClippedValue(0.2), CrossEntropyLoss()):
        whole, gradient, figures = over([batch], loss)
        cut, cut_gradient, cut_figures = over(batch.split(size), loss)
        torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(cut_gradient, gradient, rtol=0, atol=0)
        assert cut_figures == pytest.approx(figures, rel=1e-4, abs=1e-4)
