"""The equations of the papers, in float64, written to be read beside them.

A loop per response and no padding: `_responses` hands out the trained tokens of each. Arguments
after `*` are what libraries are free to choose; their defaults are what the paper says, or, where
it says nothing, what is noted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts

GAMMA = 0.99
LAM = 0.95
CLIP = 0.2
CLIP_HIGH = 0.28
DUAL_CLIP = 3.0
GSPO_CLIP = 0.05
VALUE_CLIP = 0.1
BETA = 0.05
DPO_BETA = 0.1
TIS_HIGH = 2.0
ICEPOP = (0.5, 2.0)

Mean = Literal["tokens", "responses", "constant"]
Weigh = Callable[[Tensor], Tensor]
"""From Δ = log π_old − log π_sampler of a response's tokens to their importance weights."""


@dataclass(frozen=True)
class Response:
    """The trained tokens of one response, K of them."""

    place: Tensor
    logprob: Tensor
    old: Tensor
    sampler: Tensor
    ref: Tensor
    advantage: Tensor


def _responses(batch: Rollouts) -> Iterator[Response]:
    for row in range(batch.num_rows):
        at = ((batch.row == row) & batch.mask).nonzero().squeeze(-1)
        columns = (
            batch.logprob,
            batch.old_logprob,
            batch.sampler_logprob,
            batch.ref_logprob,
            batch.advantage,
        )
        yield Response(at, *(column[at] for column in columns))


def _differentiate(
    batch: Rollouts, loss: Callable[[Rollouts], Tensor], by: str = "logprob"
) -> Answer:
    batch = batch.double()
    leaf = getattr(batch, by).clone().requires_grad_()
    total = loss(replace(batch, **{by: leaf}))
    (gradient,) = torch.autograd.grad(total, leaf)
    return Answer(total.detach(), gradient)


# Advantages


def gae_advantages(batch: Rollouts, *, skip: bool = True, bootstrap: bool = False) -> Tensor:
    """A_t = Σ_k (γλ)^k δ_(t+k), δ_t = r_t + γ·V_(t+1) − V_t (Schulman et al. 2016, eqs. 11, 12 and
    16). [N].

    Args:
        batch: Rollouts.
        skip: The steps are the tokens that the policy chose; otherwise those of a tool are steps as
            well, with V = 0.
        bootstrap: After a response that was cut off comes V of the state that it ended in, not 0.
    """
    batch = batch.double()
    reward_N = batch.rewards()
    advantage_N = torch.zeros_like(batch.logprob)
    value_N = batch.trained(batch.old_value)
    for row in range(batch.num_rows):
        steps = ((batch.row == row) & (batch.mask | (not skip))).nonzero().squeeze(-1)
        reward = reward_N[steps]
        value = value_N[steps]
        end = batch.final_value[row] if bootstrap and batch.truncated[row] else value.new_zeros(())
        following = torch.cat([value[1:], end.view(1)])
        delta = reward + GAMMA * following - value
        decay = (GAMMA * LAM) ** torch.arange(len(delta), dtype=torch.float64)
        for t, place in enumerate(steps):
            advantage_N[place] = (decay[: len(delta) - t] * delta[t:]).sum()
    return advantage_N


def gae_returns(batch: Rollouts, *, skip: bool = True, bootstrap: bool = False) -> Answer:
    """The critic's target A + V, before anything is whitened."""
    advantage_N = gae_advantages(batch, skip=skip, bootstrap=bootstrap)
    return Answer(batch.trained(advantage_N + batch.old_value.double()))


def whiten(x_N: Tensor, mask_N: Tensor, *, bessel: int = 0) -> Tensor:
    """(x − mean) / deviation over all trained tokens; the papers do not say whether by n or n − 1.

    Args:
        x_N: The column.
        mask_N: Trained tokens.
        bessel: 1 for n − 1.
    """
    x = x_N[mask_N]
    mean = x.mean()
    deviation = ((x - mean).square().sum() / (len(x) - bessel)).sqrt()
    return torch.where(mask_N, (x_N - mean) / deviation, 0.0)


def gae_whitened(batch: Rollouts, *, bessel: int = 0, skip: bool = True) -> Answer:
    """GAE with mean 0 and variance 1 over the trained tokens of the batch."""
    return Answer(whiten(gae_advantages(batch, skip=skip), batch.mask, bessel=bessel))


def group(
    batch: Rollouts,
    *,
    others: bool = False,
    deviation: Literal["none", "group", "others"] = "none",
    least: float = 0.0,
) -> Answer:
    """A_i = (r_i − b_i) / s_i, the same at each token of the response.

    GRPO: b and s are mean and standard deviation of the group (Shao et al. 2024, §4.1.2), here with
    n − 1, which the paper leaves open; 0 where all are equal. Dr. GRPO: s = 1 (Liu et al. 2025, eq.
    4). RLOO: b is the mean of the others, s = 1 (Ahmadian et al. 2024, eq. 5).

    Args:
        batch: Rollouts.
        others: b is the mean of the others.
        deviation: s is that of the group, or of the others (then 1 where these are equal).
        least: Added to s.
    """
    score_PG = batch.score.double().view(-1, GROUP)
    advantages: list[Tensor] = []
    for scores in score_PG:
        for i, score in enumerate(scores):
            rest = torch.cat([scores[:i], scores[i + 1 :]])
            centered = score - (rest if others else scores).mean()
            if deviation == "group":
                centered = centered / (scores.std() + least) if scores.std() > 0 else 0.0 * centered
            if deviation == "others" and rest.std() > 0:
                centered = centered / (rest.std() + least)
            advantages.append(centered)
    return Answer(batch.trained(torch.stack(advantages)[batch.row]))


def reinforce_plus_plus(
    batch: Rollouts,
    *,
    baseline: bool = False,
    kl: Literal["following", "own", "none"] = "following",
    bessel: int = 0,
) -> Answer:
    """A_t = r − β·Σ_(i≥t) KL_i, with mean 0 and variance 1 over the batch (Hu 2025, eqs. 4 and 5).

    Args:
        batch: Rollouts.
        baseline: r less the mean of its group (REINFORCE++ with baseline, Hu 2025, §3).
        kl: A token pays for all that follow it, or for itself alone, or there is none.
        bessel: As in `whiten`.
    """
    batch = batch.double()
    score_B = batch.score
    if baseline:
        score_B = score_B - score_B.view(-1, GROUP).mean(-1).repeat_interleave(GROUP)
    paid_N = batch.trained(BETA * estimator("k1", batch.old_logprob, batch.ref_logprob))
    if kl == "following":
        paid_N = torch.cat([paid.flip(0).cumsum(0).flip(0) for paid in batch.split(paid_N)])
    if kl == "none":
        paid_N = torch.zeros_like(paid_N)
    advantage_N = score_B[batch.row] - paid_N
    return Answer(whiten(advantage_N, batch.mask, bessel=bessel))


def rewards_with_kl(batch: Rollouts, *, estimate: str = "k1", bound: float = math.inf) -> Answer:
    """r_t − β·(log π_old − log π_ref) (Ziegler et al. 2019, eq. 2; Ouyang et al. 2022, eq. 2). [N].

    Args:
        batch: Rollouts.
        estimate: Of the divergence.
        bound: The estimate goes no higher.
    """
    batch = batch.double()
    kl_N = estimator(estimate, batch.old_logprob, batch.ref_logprob).clamp(-bound, bound)
    return Answer(batch.trained(batch.rewards() - BETA * kl_N))


# Divergence


def estimator(name: str, logprob: Tensor, ref: Tensor) -> Tensor:
    """Δ, Δ²/2 and e^(−Δ) − 1 + Δ with Δ = log π − log π_ref (Schulman 2020, 'Approximating KL
    divergence').
    """
    delta = logprob - ref
    return {"k1": delta, "k2": delta**2 / 2, "k3": torch.exp(-delta) - 1 + delta}[name]


def kl_estimate(batch: Rollouts, *, name: str, bound: float = math.inf) -> Answer:
    """The mean of an estimate over all trained tokens, differentiated as it stands."""

    def loss(given: Rollouts) -> Tensor:
        kl = estimator(name, given.logprob, given.ref_logprob).clamp(-bound, bound)
        return kl[given.mask].mean()

    return _differentiate(batch, loss)


def kl_gradient(
    batch: Rollouts,
    *,
    factor: Literal["ratio", "one", "sampler"] = "ratio",
    slope: Literal["difference", "k1", "k3"] = "difference",
    bound: float = math.inf,
) -> Answer:
    """The gradient of KL(π ‖ π_ref) from tokens that π_old sampled: E_old[ρ·Δ·∇log π], ρ = π/π_old.

    From KL = E_π[Δ]: ∇KL = E_π[Δ·∇log π] + E_π[∇log π], and the second is 0. Only the gradient has
    a meaning here.

    Args:
        batch: Rollouts.
        factor: ρ, or 1 as if π had sampled, or π/π_sampler.
        slope: What stands in for Δ: that of k1, which is 1, or of k3, 1 − e^(−Δ), where it is
            differentiated as it is.
        bound: Tokens whose estimate k3 is above have no gradient.
    """
    batch = batch.double()
    gradient_N = torch.zeros_like(batch.logprob)
    for response in _responses(batch):
        delta = response.logprob - response.ref
        slopes = {"difference": delta, "k1": torch.ones_like(delta), "k3": 1 - torch.exp(-delta)}[
            slope
        ]
        slopes = torch.where(estimator("k3", response.logprob, response.ref) <= bound, slopes, 0.0)
        behavior = {"ratio": response.old, "one": response.logprob, "sampler": response.sampler}[
            factor
        ]
        ratio = torch.exp(response.logprob - behavior)
        gradient_N[response.place] = ratio * slopes / batch.num_tokens
    return Answer(None, gradient_N)


# Policy losses


def policy_loss(
    batch: Rollouts,
    *,
    low: float = CLIP,
    high: float = CLIP,
    dual: float | None = None,
    mean: Mean = "tokens",
    ratio: Literal["token", "response", "response-token"] = "token",
    per_response: bool = False,
    weigh: Weigh = torch.ones_like,
) -> Answer:
    """−mean of w·min(ρA, clip(ρ, 1 − low, 1 + high)·A).

    PPO (Schulman et al. 2017, eq. 7) over tokens; GRPO over responses of means over tokens (Shao et
    al. 2024, eq. 3); Dr. GRPO over responses of sums over a constant (Liu et al. 2025); DAPO's
    clip-higher (Yu et al. 2025, eq. 10); dual clip (Ye et al. 2020, eq. 5); GSPO, ρ the geometric
    mean of a response's (Zheng et al. 2025, eq. 7); GSPO-token, the same number with a gradient
    through each token alone, sg(ρ)·π/sg(π), so that each token has its own advantage (eqs. 13 and
    14).

    Args:
        batch: Rollouts.
        low: Below.
        high: Above.
        dual: c, for negative A.
        mean: Over what.
        ratio: Of a token, of a response, or of a response with a token's gradient.
        per_response: All tokens of a response have its advantage.
        weigh: w.
    """

    def loss(given: Rollouts) -> Tensor:
        total = given.logprob.new_zeros(())
        for row, response in enumerate(_responses(given)):
            delta = response.logprob - response.old
            rho = delta.exp() if ratio == "token" else delta.mean().exp()
            if ratio == "response-token":
                rho = rho.detach() * (response.logprob - response.logprob.detach()).exp()
            advantage = response.advantage
            if per_response:
                advantage = given.response_advantage[row].expand_as(advantage)
            gain = torch.minimum(rho * advantage, rho.clamp(1 - low, 1 + high) * advantage)
            if dual is not None:
                gain = torch.where(advantage < 0, torch.maximum(gain, dual * advantage), gain)
            gain = weigh(response.old - response.sampler) * gain
            total = total - _share(gain, given, mean)
        return total

    return _differentiate(batch, loss)


def cispo(batch: Rollouts, *, low: float = math.inf) -> Answer:
    """−mean over tokens of sg(clip(ρ, 1 − low, 1 + high))·A·log π (MiniMax 2025, eqs. 4 and 5); no
    lower bound.
    """

    def loss(given: Rollouts) -> Tensor:
        total = given.logprob.new_zeros(())
        for response in _responses(given):
            weight = (response.logprob - response.old).exp().clamp(1 - low, 1 + CLIP).detach()
            total = total - _share(weight * response.advantage * response.logprob, given, "tokens")
        return total

    return _differentiate(batch, loss)


def _share(gain: Tensor, batch: Rollouts, mean: Mean) -> Tensor:
    """The share of one response in the mean over the batch."""
    match mean:
        case "tokens":
            return gain.sum() / batch.num_tokens
        case "responses":
            return gain.mean() / batch.num_rows
        case "constant":
            return gain.sum() / MAX_TOKENS / batch.num_rows


def truncate(delta: Tensor) -> Tensor:
    """min(e^Δ, C): truncated importance sampling of a token (Yao et al. 2025)."""
    return delta.exp().clamp(max=TIS_HIGH)


def truncate_response(delta: Tensor) -> Tensor:
    """min(e^ΣΔ, C): of a response."""
    return delta.sum().exp().clamp(max=TIS_HIGH)


def icepop(delta: Tensor) -> Tensor:
    """e^Δ within [low, high], 0 outside (Zhao et al. 2025, 'IcePop')."""
    low, high = ICEPOP
    return torch.where((delta.exp() >= low) & (delta.exp() <= high), delta.exp(), 0.0)


# Others


def value_loss(batch: Rollouts) -> Answer:
    """Mean over tokens of ½·max((V − R)², (V_old + clip(V − V_old, ±ε) − R)²) (OpenAI baselines,
    PPO2).
    """

    def loss(given: Rollouts) -> Tensor:
        moved = (given.value - given.old_value).clamp(-VALUE_CLIP, VALUE_CLIP)
        plain = (given.value - given.returns) ** 2
        bounded = (given.old_value + moved - given.returns) ** 2
        error_N = torch.maximum(plain, bounded) / 2
        return error_N[given.mask].mean()

    return _differentiate(batch, loss, by="value")


def entropy(batch: Rollouts) -> Answer:
    """Mean over trained tokens of −Σ_v p_v·log p_v, p = softmax(logits)."""

    def loss(given: Rollouts) -> Tensor:
        p = torch.exp(given.logits) / torch.exp(given.logits).sum(-1, keepdim=True)
        return -(p * p.log()).sum(-1)[given.mask].mean()

    return _differentiate(batch, loss, by="logits")


def dpo(batch: Rollouts, *, squared: bool = False) -> Answer:
    """Mean over pairs of −log σ(β·Δ), Δ = d_w − d_l, d = log π − log π_ref of an answer (Rafailov
    et al. 2023, eq. 7).

    Args:
        batch: Rollouts, every two of which are a pair, the chosen one first.
        squared: (Δ − 1/(2β))² instead (IPO, Azar et al. 2023, eq. 17).
    """

    def loss(given: Rollouts) -> Tensor:
        worth = torch.stack(
            [(response.logprob - response.ref).sum() for response in _responses(given)]
        )
        gap = worth[0::2] - worth[1::2]
        if squared:
            return ((gap - 1 / (2 * DPO_BETA)) ** 2).mean()
        return -torch.log(1 / (1 + torch.exp(-DPO_BETA * gap))).mean()

    return _differentiate(batch, loss)
