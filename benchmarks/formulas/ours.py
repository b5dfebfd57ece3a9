"""Lockstep's functions on the rollouts: losses that its learners call, and advantages that its
steps compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts, of_loss
from lockstep.algorithms.grpo.options import GRPOSection, PolicyGradient
from lockstep.algorithms.grpo.step import with_advantages
from lockstep.core.batch import Batch
from lockstep.losses.base import Loss, Outputs, count_active
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.losses.preference import Preference
from lockstep.objectives.advantage import gae
from lockstep.objectives.divergence import k1, k2, k3, kl_loss
from lockstep.objectives.masks import masked_whiten, zero_outside_mask
from lockstep.objectives.mismatch import icepop, sequence_tis, token_tis
from lockstep.objectives.shaping import token_rewards
from lockstep_logprobs.softmax import Scoring
from lockstep_logprobs.vocab import vocab_logprobs

_OBJECTIVES = "lockstep/objectives"
_LOSSES = "lockstep/losses"


def _batch(given: Rollouts, group_size: int = 1, advantage_N: Tensor | None = None) -> Batch:
    token = {
        "mask": given.mask,
        "old_logprob": given.old_logprob,
        "ref_logprob": given.ref_logprob,
        "advantage": given.advantage if advantage_N is None else advantage_N,
        "weight": torch.ones_like(given.advantage),
        "old_value": given.old_value,
        "return": given.returns,
    }
    sample = {"shaped_score": given.score, "score": given.score}
    tokens = torch.zeros(len(given.mask), dtype=torch.int64)
    return Batch(tokens, given.lengths, token, sample, group_size=group_size)


def _mean(loss: Loss, part: Rollouts, whole: Batch, batch: Batch, outputs: Outputs) -> Tensor:
    return loss(outputs, batch)[0] / count_active(whole, loss.denominator)


def _policy(
    given: Rollouts,
    *,
    correction: Callable[[Rollouts], Tensor] | None = None,
    per_response: bool = False,
    **options: Any,
) -> Answer:
    chosen: dict[str, Any] = {"clip_low": paper.CLIP, "clip_high": paper.CLIP}
    loss = ClippedSurrogate(**chosen | options)
    whole = _batch(given)

    def share(part: Rollouts) -> Tensor:
        advantage_N = part.response_advantage[part.row] if per_response else None
        batch = _batch(part, advantage_N=advantage_N)
        if correction is not None:
            batch = batch.with_columns({"weight": correction(part)})
        return _mean(loss, part, whole, batch, Outputs(logprob=part.logprob))

    return of_loss(given, share)


def _weigh_tokens(given: Rollouts) -> Tensor:
    return token_tis(given.old_logprob, given.sampler_logprob, given.mask, paper.TIS_HIGH)


def _weigh_sequences(given: Rollouts) -> Tensor:
    return sequence_tis(
        given.old_logprob, given.sampler_logprob, given.mask, given.lengths, paper.TIS_HIGH
    )


def _weigh_by_icepop(given: Rollouts) -> Tensor:
    return icepop(given.old_logprob, given.sampler_logprob, given.mask, *paper.ICEPOP)


def _values(given: Rollouts) -> Answer:
    loss = ClippedValue(paper.VALUE_CLIP)
    whole = _batch(given)
    return of_loss(
        given,
        lambda part: _mean(loss, part, whole, _batch(part), Outputs(value=part.value)),
        "value",
    )


def _dpo(given: Rollouts, kind: str) -> Answer:
    options: Any = {"kind": kind, "beta": paper.DPO_BETA}
    loss = Preference(**options)
    whole = _batch(given, 2)
    return of_loss(
        given, lambda part: _mean(loss, part, whole, _batch(part, 2), Outputs(logprob=part.logprob))
    )


def _entropy(given: Rollouts) -> Answer:
    def share(part: Rollouts) -> Tensor:
        token_M1 = torch.zeros(len(part.mask), 1, dtype=torch.int64)
        _, entropy_N = vocab_logprobs(part.logits, token_M1, Scoring(entropy=True))
        assert entropy_N is not None, "it was asked for"
        return zero_outside_mask(entropy_N, part.mask).sum() / given.num_tokens

    return of_loss(given, share, by="logits")


def _kl(given: Rollouts, estimate: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    def share(part: Rollouts) -> Tensor:
        return (
            zero_outside_mask(estimate(part.logprob, part.ref_logprob), part.mask).sum()
            / given.num_tokens
        )

    return of_loss(given, share)


def _kl_in_loss(given: Rollouts) -> Answer:
    def share(part: Rollouts) -> Tensor:
        kl_N = kl_loss(part.logprob, part.old_logprob, part.ref_logprob)
        return zero_outside_mask(kl_N, part.mask).sum() / given.num_tokens

    return Answer(None, of_loss(given, share).gradient)


def _gae(given: Rollouts, bootstrap: bool = False) -> Tensor:
    reward_N = token_rewards(given.score, given.mask, given.lengths)
    final_B = torch.where(given.truncated & bootstrap, given.final_value, 0.0)
    options: Any = {"gamma": paper.GAMMA, "lam": paper.LAM, "final_value_B": final_B}
    return gae(reward_N, given.old_value, given.mask, given.lengths, **options)


def _returns(given: Rollouts, bootstrap: bool = False) -> Answer:
    return Answer(_gae(given, bootstrap) + zero_outside_mask(given.old_value, given.mask))


def _group(given: Rollouts, *, kl: bool = False, **options: Any) -> Answer:
    section = {"num_prompts_per_step": 4, "num_generations": GROUP, "global_batch_size": 16}
    batch = _batch(given)
    if kl:
        penalty_N = paper.BETA * zero_outside_mask(
            k1(given.old_logprob, given.ref_logprob), given.mask
        )
        batch = batch.with_columns({"kl_penalty": penalty_N})
    grpo = GRPOSection.model_validate(section | options)
    return Answer(with_advantages(batch, PolicyGradient.model_construct(grpo=grpo))[0]["advantage"])


def _reward(given: Rollouts) -> Answer:
    reward_N = token_rewards(given.score, given.mask, given.lengths)
    return Answer(
        reward_N
        - paper.BETA * zero_outside_mask(k1(given.old_logprob, given.ref_logprob), given.mask)
    )


def cases() -> list[Case]:
    """Every formula."""
    step = "lockstep/algorithms/grpo/step.py:with_advantages"
    policy = f"{_LOSSES}/ppo.py:ClippedSurrogate"
    preference = f"{_LOSSES}/preference.py:Preference"
    mismatch = f"{_OBJECTIVES}/mismatch.py"
    divergence = f"{_OBJECTIVES}/divergence.py"
    gspo = {
        "mean": "responses",
        "sequence_ratio": True,
        "clip_low": paper.GSPO_CLIP,
        "clip_high": paper.GSPO_CLIP,
    }
    at_gae = f"{_OBJECTIVES}/advantage.py:gae"
    plus = {"baseline": "none", "scale_rewards": "none", "whiten_advantages": True}
    with_baseline = {"baseline": "mean", "scale_rewards": "none", "whiten_advantages": True}
    return [
        Case("gae_returns", _returns, at_gae),
        Case("gae_cut_off", partial(_returns, bootstrap=True), at_gae, "bootstrap_truncated"),
        Case(
            "gae_whitened",
            lambda given: Answer(masked_whiten(_gae(given), given.mask)),
            f"{_OBJECTIVES}/masks.py",
        ),
        Case(
            "grpo",
            _group,
            step,
            kind="convention",
            because="s + 10⁻⁴",
            instead=partial(paper.group, deviation="group", least=1e-4),
        ),
        Case("dr_grpo", partial(_group, scale_rewards="none"), step),
        Case("rloo", partial(_group, baseline="leave_one_out", scale_rewards="none"), step),
        Case("reinforce_pp", partial(_group, kl=True, **plus), step),
        Case("reinforce_pp_baseline", partial(_group, **with_baseline), step),
        Case("kl_reward", _reward, f"{divergence}:k1"),
        Case("ppo_tokens", _policy, policy),
        Case("ppo_responses", partial(_policy, mean="responses"), policy),
        Case("dr_grpo_mean", partial(_policy, mean="constant", max_tokens=MAX_TOKENS), policy),
        Case("clip_higher", partial(_policy, clip_high=paper.CLIP_HIGH), policy),
        Case("dual_clip", partial(_policy, dual_clip=paper.DUAL_CLIP), policy),
        Case("gspo", partial(_policy, per_response=True, **gspo), policy),
        Case("gspo_token", partial(_policy, **gspo), policy),
        Case("cispo", partial(_policy, cispo=True), policy),
        Case("tis_token", partial(_policy, correction=_weigh_tokens), f"{mismatch}:token_tis"),
        Case(
            "tis_sequence",
            partial(_policy, correction=_weigh_sequences),
            f"{mismatch}:sequence_tis",
        ),
        Case("icepop", partial(_policy, correction=_weigh_by_icepop), f"{mismatch}:icepop"),
        Case("k1", partial(_kl, estimate=k1), f"{divergence}:k1"),
        Case("k2", partial(_kl, estimate=k2), f"{divergence}:k2"),
        Case("k3", partial(_kl, estimate=k3), f"{divergence}:k3"),
        Case("kl_loss", _kl_in_loss, f"{divergence}:kl_loss"),
        Case("entropy", _entropy, "lockstep_logprobs/vocab.py:vocab_logprobs"),
        Case("value_loss", _values, f"{_LOSSES}/ppo.py:ClippedValue"),
        Case("dpo", partial(_dpo, kind="dpo"), preference),
        Case("ipo", partial(_dpo, kind="ipo"), preference),
    ]
