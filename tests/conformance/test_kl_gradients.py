"""The divergence from the reference, against autograd: every response of a small vocabulary is
enumerated, in float64.

What a step really does is run on all responses at once, each weighed by its probability: advantages
by GRPO or PPO, then the clipped loss. The gradient of that sum is the exact expected gradient of a
step; it must be the divergence's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lockstep.algorithms.grpo import step as grpo
from lockstep.algorithms.grpo.options import GRPOSection, PolicyGradient
from lockstep.algorithms.ppo import step as ppo
from lockstep.algorithms.ppo.options import PPOSection
from lockstep.core.batch import Batch
from lockstep.losses.base import Outputs
from lockstep.losses.ppo import ClippedSurrogate
from lockstep.objectives.divergence import k1

VOCABULARY, LENGTH = 4, 3
RESPONSES = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))  # [R, T]
Estimate = Callable[[Tensor, Tensor], Tensor]


def table(seed: int) -> Tensor:
    """Logits of a policy in each of its states: a state is what was answered so far.

    Returns [S, V].
    """
    states = sum(VOCABULARY**t for t in range(LENGTH))
    return torch.randn(
        states, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def token_logprobs(logits: Tensor, responses: Tensor = RESPONSES) -> Tensor:
    """log π of each token of each response. Returns [R, T]."""
    first, prefix, columns = 0, torch.zeros(len(responses), dtype=torch.int64), []
    for t in range(LENGTH):
        columns.append(logits.log_softmax(-1)[first + prefix, responses[:, t]])
        first, prefix = first + VOCABULARY**t, prefix * VOCABULARY + responses[:, t]
    return torch.stack(columns, 1)


def divergence(logits: Tensor, ref: Tensor) -> Tensor:
    """KL(π ‖ π_ref) over whole responses."""
    logprob_R = token_logprobs(logits).sum(1)
    return (logprob_R.exp() * (logprob_R - token_logprobs(ref).sum(1))).sum()


def divergence_at_sampled_states(logits: Tensor, old: Tensor, ref: Tensor) -> Tensor:
    """Σ over tokens of KL(π ‖ π_ref) at the state before, for states as π_old comes to them."""
    reached_R, total = (
        torch.zeros(len(RESPONSES), dtype=torch.float64),
        torch.zeros((), dtype=torch.float64),
    )
    old_RT, own_RT, ref_RT = (token_logprobs(x) for x in (old, logits, ref))
    for t in range(LENGTH):
        follow = VOCABULARY ** (LENGTH - t - 1)  # responses that share their first t + 1 tokens
        at_state_R = own_RT[:, t].exp() * (own_RT[:, t] - ref_RT[:, t])
        total = total + (reached_R.exp() * at_state_R).sum() / follow
        reached_R = reached_R + old_RT[:, t].detach()
    return total


def batch_of(
    old: Tensor, ref: Tensor, estimate: Estimate, responses: Tensor, weight_B: Tensor
) -> Batch:
    """Responses of π_old with all that a step knows of them, β being 1, and each weighed."""
    count = len(responses)
    old_N, ref_N = (token_logprobs(x, responses).reshape(-1).detach() for x in (old, ref))
    return Batch(
        responses.reshape(-1),
        torch.full((count,), LENGTH),
        {
            "mask": torch.ones(count * LENGTH, dtype=torch.bool),
            "old_logprob": old_N,
            "ref_logprob": ref_N,
            "kl_penalty": estimate(old_N, ref_N),
            "weight": weight_B.repeat_interleave(LENGTH),
        },
        {
            "score": torch.zeros(count, dtype=torch.float64),
            "shaped_score": torch.zeros(count, dtype=torch.float64),
            "truncated": torch.zeros(count, dtype=torch.bool),
        },
    )


def gradient(logits: Tensor, batch: Batch, loss: ClippedSurrogate) -> Tensor:
    """Of a step's loss with respect to the policy's logits."""
    logits = logits.clone().requires_grad_()
    logprob_N = token_logprobs(logits, batch.tokens.view(-1, LENGTH)).reshape(-1)
    total, _ = loss(Outputs(logprob=logprob_N), batch)
    return torch.autograd.grad(total, logits)[0]


def exact(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def in_reward_of_reinforce(old: Tensor, ref: Tensor, estimate: Estimate = k1) -> Tensor:
    """REINFORCE++ without its whitening: no baseline, and a token pays for itself and what
    follows.
    """
    options = {"num_generations": 1, "baseline": "none", "scale_rewards": "none"}
    grpo_options = GRPOSection.model_validate(
        {"num_prompts_per_step": 64, "global_batch_size": 64, **options}
    )
    batch = batch_of(old, ref, estimate, RESPONSES, token_logprobs(old).sum(1).exp())
    batch, _ = grpo.with_advantages(batch, PolicyGradient.model_construct(grpo=grpo_options))
    return gradient(old, batch, ClippedSurrogate(0.2, 0.2))


def in_reward_of_rloo(old: Tensor, ref: Tensor, baseline: str) -> Tensor:
    """Of all pairs of responses, each a group of two."""
    first, second = torch.cartesian_prod(
        torch.arange(len(RESPONSES)), torch.arange(len(RESPONSES))
    ).T
    pairs = RESPONSES[torch.stack([first, second], 1).reshape(-1)]
    logprob_R = token_logprobs(old).sum(1)
    weight_B = (logprob_R[first] + logprob_R[second]).exp().repeat_interleave(2) / 2
    options = {"num_generations": 2, "baseline": baseline, "scale_rewards": "none"}
    grpo_options = GRPOSection.model_validate(
        {"num_prompts_per_step": 4096, "global_batch_size": 64, **options}
    )
    recipe = PolicyGradient.model_construct(grpo=grpo_options)
    batch, _ = grpo.with_advantages(batch_of(old, ref, k1, pairs, weight_B), recipe)
    return gradient(old, batch, ClippedSurrogate(0.2, 0.2))


def in_reward_of_ppo(old: Tensor, ref: Tensor) -> Tensor:
    """With any critic at all, because λ = 1 makes its values a baseline."""
    batch = batch_of(old, ref, k1, RESPONSES, token_logprobs(old).sum(1).exp())
    prefix = torch.cat(
        [torch.zeros(len(RESPONSES), 1, dtype=torch.int64), RESPONSES[:, :-1].cumsum(1)], 1
    )
    value_N = torch.sin(prefix.reshape(-1).float())  # a function of the state
    penalty_N = batch["kl_penalty"].float()
    batch = batch.with_columns(
        {"old_value": value_N, "kl_penalty": penalty_N},
        {"final_value": torch.zeros(len(RESPONSES))},
    )
    options = {
        "num_prompts_per_step": 64,
        "global_batch_size": 64,
        "gae_lambda": 1.0,
        "whiten_advantages": False,
    }
    batch, _ = ppo.with_advantages(batch, PPOSection.model_validate(options))
    return gradient(old, batch, ClippedSurrogate(0.2, 0.2))


SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_in_reward_gives_exact_gradient_of_sequence_kl(seed: int) -> None:
    old, ref = table(2 * seed), table(2 * seed + 1)
    wanted = exact(lambda logits: divergence(logits, ref), old)
    torch.testing.assert_close(in_reward_of_reinforce(old, ref), wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        in_reward_of_rloo(old, ref, "leave_one_out"), wanted, rtol=1e-9, atol=1e-12
    )
    # The mean of a group holds the response itself, which takes 1/G of the gradient; scale_rewards
    # undoes that or not.
    torch.testing.assert_close(
        in_reward_of_rloo(old, ref, "mean"), wanted / 2, rtol=1e-9, atol=1e-12
    )
    # GAE computes in fp32
    torch.testing.assert_close(in_reward_of_ppo(old, ref), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distance", [0.0, 0.1, 1.0])
def test_kl_in_loss_gives_gradient_of_token_kl_at_sampled_states(
    seed: int, distance: float
) -> None:
    """On-policy (distance 0) and with the policy moved since it sampled."""
    now, ref = table(2 * seed), table(2 * seed + 1)
    old = now + distance * table(100 + seed)
    wanted = exact(lambda logits: divergence_at_sampled_states(logits, old, ref), now)
    batch = batch_of(old, ref, k1, RESPONSES, token_logprobs(old).sum(1).exp())
    batch = batch.with_columns(
        {"advantage": torch.zeros(batch.tokens.numel(), dtype=torch.float64)}
    )
    for cispo in (False, True):
        found = gradient(now, batch, ClippedSurrogate(0.2, 0.2, kl_coef=1.0, cispo=cispo))
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_k3_in_loss_gives_gradient_of_the_reverse_kl(seed: int) -> None:
    """As GRPO's paper has it: of KL(π_ref ‖ π), at states that π itself comes to."""
    now, ref = table(2 * seed), table(2 * seed + 1)

    def reverse(logits: Tensor) -> Tensor:
        return divergence_at_sampled_states(ref, now, logits)

    batch = batch_of(now, ref, k1, RESPONSES, token_logprobs(now).sum(1).exp())
    batch = batch.with_columns(
        {"advantage": torch.zeros(batch.tokens.numel(), dtype=torch.float64)}
    )
    loss = ClippedSurrogate(0.2, 0.2, kl_coef=1.0, kl_estimator="k3")
    torch.testing.assert_close(
        gradient(now, batch, loss), exact(reverse, now), rtol=1e-9, atol=1e-12
    )


def test_importance_weights_correct_kl_loss_for_stale_sampler() -> None:
    """Importance weights from sampler to learner weigh the divergence as they weigh the
    surrogate.
    """
    now, ref, sampler = table(0), table(1), table(2)
    # only the first token counts below
    single = torch.arange(VOCABULARY)[:, None].repeat(1, LENGTH)
    weight_B = (token_logprobs(now, single) - token_logprobs(sampler, single))[:, 0].exp()
    drawn_B = token_logprobs(sampler, single)[:, 0].exp()
    batch = batch_of(now, ref, k1, single, weight_B * drawn_B)
    first = torch.tensor([True, *[False] * (LENGTH - 1)]).repeat(VOCABULARY)
    batch = batch.with_columns(
        {"mask": first, "advantage": torch.zeros(len(first), dtype=torch.float64)}
    )
    found = gradient(now, batch, ClippedSurrogate(0.2, 0.2, kl_coef=1.0))[0]

    def of_first(logits: Tensor) -> Tensor:
        logprob, ref_logprob = logits[0].log_softmax(-1), ref[0].log_softmax(-1)
        return (logprob.exp() * (logprob - ref_logprob)).sum()

    torch.testing.assert_close(found, exact(of_first, now)[0], rtol=1e-9, atol=1e-12)
