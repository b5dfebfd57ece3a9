"""OpenRLHF: its losses, and the advantages of its experience maker.

The counts are those of all micro-batches, as its actor passes them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files, bind
from benchmarks.formulas.recurring import (
    differentiate_k1,
    differentiate_k2,
    differentiate_k3,
    estimate_kl,
    share_credit,
)
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_LOSS = "openrlhf.models.loss"
_TOOLS = "openrlhf.models.utils"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_REAL = {
    _LOSS: "openrlhf/models/loss.py",
    _TOOLS: "openrlhf/models/utils.py",
    _MAKER: "openrlhf/trainer/ppo_utils/experience_maker.py",
    "openrlhf.trainer.ppo_utils.length_penalty": "openrlhf/trainer/ppo_utils/length_penalty.py",
}
_ABSENT = ("openrlhf", "ray", "deepspeed", "flash_attn", "vllm")
# Formulas that it lacks:
#   "gae_cut_off": "a response that was cut off counts as ended"
#   "dr_grpo_mean": "no mean with a constant denominator"
#   "cispo": "not there"
#   "tis_sequence": "a geometric mean that drops responses instead (seq-mask-tis)"


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    theirs = _OpenRLHF(files)
    return (
        _advantage_cases(theirs) + _policy_cases(theirs) + _kl_cases(theirs) + _other_cases(theirs)
    )


class _OpenRLHF:
    """Calls of its functions."""

    def __init__(self, files: Files) -> None:
        self.maker, self.tools, self.loss = (
            files.load(_MAKER),
            files.load(_TOOLS),
            files.load(_LOSS),
        )
        self.files = files

    def experience(self, given: Rollouts, estimator: str, kl: bool = False) -> Any:
        gamma = paper.GAMMA if estimator == "gae" else 1.0
        advantage = SimpleNamespace(
            estimator=estimator, gamma=gamma, lambd=paper.LAM, no_std_norm=False
        )
        reward = SimpleNamespace(
            clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None
        )
        args = SimpleNamespace(
            algo=SimpleNamespace(advantage=advantage),
            rollout=SimpleNamespace(n_samples_per_prompt=GROUP),
            reward=reward,
        )
        maker = bind(
            self.maker.RemoteExperienceMaker,
            strategy=SimpleNamespace(args=args),
            kl_ctl=SimpleNamespace(value=paper.BETA if kl else 0.0),
            advantage_estimator=estimator,
        )
        made = SimpleNamespace(
            index=list(range(given.num_rows)),
            rewards=given.score.clone(),
            kl=self.estimate(given, "k1"),
            values=given.padded(given.old_value),
            action_mask=given.padded(given.mask.float()),
            info={},
        )
        maker.compute_advantages_and_returns([made])
        return made

    def advantages(self, given: Rollouts, estimator: str, kl: bool = False) -> Answer:
        return Answer(given.flat(self.experience(given, estimator, kl).advantages))

    def returns(self, given: Rollouts) -> Answer:
        return Answer(given.flat(self.experience(given, "gae").returns))

    def estimate(self, given: Rollouts, name: str) -> Tensor:
        """Of the divergence of the old policy."""
        grids = given.padded(given.old_logprob), given.padded(given.ref_logprob)
        return self.tools.compute_approx_kl(*grids, kl_estimator=name)

    def rewards(self, given: Rollouts) -> Answer:
        mask_BT = given.padded(given.mask.float())
        reward_BT = self.tools.compute_reward(
            given.score, paper.BETA, self.estimate(given, "k1"), action_mask=mask_BT
        )
        return Answer(given.flat(reward_BT))

    def policy(self, given: Rollouts, per_response: bool = False, **options: Any) -> Answer:
        loss = self.loss.PolicyLoss(
            **{"clip_eps_low": paper.CLIP, "clip_eps_high": paper.CLIP} | options
        )

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            columns = (
                part.logprob,
                part.old_logprob,
                advantage_N,
                part.mask.float(),
                part.sampler_logprob,
            )
            return loss(*(part.padded(x) for x in columns), **_counts(given))[0]

        return of_loss(given, share)

    def values(self, given: Rollouts) -> Answer:
        loss = self.loss.ValueLoss(paper.VALUE_CLIP)

        def share(part: Rollouts) -> Tensor:
            columns = part.value, part.old_value, part.returns, part.mask.float()
            return loss(*(part.padded(x) for x in columns), **_counts(given))

        return of_loss(given, share, by="value")

    def mean(self, part: Rollouts, x_BT: Tensor, given: Rollouts) -> Tensor:
        return self.loss.aggregate_loss(x_BT, part.padded(part.mask.float()), **_counts(given))

    def entropy(self, given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            return self.mean(part, self.tools.compute_entropy(part.padded(part.logits)), given)

        return of_loss(given, share, by="logits")

    def kl(self, given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            grids = part.padded(part.logprob), part.padded(part.ref_logprob)
            return self.mean(part, self.tools.compute_approx_kl(*grids, name), given)

        return of_loss(given, share)

    def kl_gradient(self, given: Rollouts, name: str) -> Answer:
        return Answer(None, self.kl(given, name).gradient)

    def preference(self, given: Rollouts, ipo: bool) -> Answer:
        loss = self.loss.DPOLoss(paper.DPO_BETA, ipo=ipo)

        def share(part: Rollouts) -> Tensor:
            mask_BT = part.padded(part.mask.float())
            sums = [(part.padded(x) * mask_BT).sum(-1) for x in (part.logprob, part.ref_logprob)]
            return (
                loss(*(x[first::2] for x in sums for first in (0, 1)))[0]
                * part.num_rows
                / given.num_rows
            )

        return of_loss(given, share)


def _counts(given: Rollouts) -> dict[str, int]:
    return {"dp_size": 1, "batch_num_tokens": given.num_tokens, "global_batch_size": given.num_rows}


def _advantage_cases(theirs: _OpenRLHF) -> list[Case]:
    at_gae = theirs.files.at(_MAKER, "RemoteExperienceMaker.get_advantages_and_returns")
    at = theirs.files.at(_MAKER, "RemoteExperienceMaker.compute_advantages_and_returns")
    through: Any = {"kind": "substance", "because": "a tool's tokens are steps, with V = 0"}
    whitened = partial(paper.gae_whitened, skip=False)

    def outcome(formula: str, estimator: str, kl: bool = False) -> Case:
        return Case(
            formula,
            partial(theirs.advantages, estimator=estimator, kl=kl),
            at,
            f"estimator: {estimator}",
        )

    return [
        Case(
            "gae_returns",
            theirs.returns,
            at_gae,
            instead=partial(paper.gae_returns, skip=False),
            **through,
        ),
        Case(
            "gae_whitened",
            partial(theirs.advantages, estimator="gae"),
            at,
            instead=whitened,
            **through,
        ),
        outcome("grpo", "group_norm"),
        outcome("dr_grpo", "dr_grpo"),
        outcome("rloo", "rloo"),
        outcome("reinforce_pp", "reinforce", kl=True),
        outcome("reinforce_pp_baseline", "reinforce_baseline"),
        Case(
            "kl_reward",
            theirs.rewards,
            theirs.files.at(_TOOLS, "compute_reward"),
            "kl.estimator: k1 (default)",
        ),
    ]


def _policy_cases(theirs: _OpenRLHF) -> list[Case]:
    at = theirs.files.at(_LOSS, "PolicyLoss.forward")
    policy = theirs.policy
    tis = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.0, paper.TIS_HIGH]}
    icepop = tis | {
        "vllm_is_truncated_threshold": list(paper.ICEPOP),
        "vllm_is_correction_type": "icepop",
    }
    clip = {"clip_eps_low": paper.GSPO_CLIP, "clip_eps_high": paper.GSPO_CLIP}
    gspo = partial(policy, policy_loss_type="gspo", **clip)
    return [
        Case("ppo_tokens", policy, at),
        Case(
            "ppo_responses", partial(policy, token_level_loss=False), at, "token_level_loss: False"
        ),
        Case("clip_higher", partial(policy, clip_eps_high=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, dual_clip=paper.DUAL_CLIP), at),
        Case("gspo", partial(gspo, per_response=True), at),
        share_credit(gspo, at),
        Case("tis_token", partial(policy, **tis), at, "vllm_is_truncated_threshold: [0, 2]"),
        Case("icepop", partial(policy, **icepop), at),
    ]


def _kl_cases(theirs: _OpenRLHF) -> list[Case]:
    at = theirs.files.where("openrlhf/trainer/ray/ppo_actor.py", "kl_loss = aggregate_loss")
    k1, k2, k3 = (partial(theirs.kl_gradient, name=name) for name in ("k1", "k2", "k3"))
    return [
        *estimate_kl(theirs.kl, theirs.files.at(_TOOLS, "compute_approx_kl")),
        differentiate_k1(k1, at, "kl.estimator: k1 (default; in a loss it warns)"),
        differentiate_k3(k3, at, "kl.estimator: k3"),
        differentiate_k2(k2, at, "kl.estimator: k2"),
    ]


def _other_cases(theirs: _OpenRLHF) -> list[Case]:
    at_dpo = theirs.files.at(_LOSS, "DPOLoss.forward")
    return [
        Case("entropy", theirs.entropy, theirs.files.at(_TOOLS, "compute_entropy")),
        Case("value_loss", theirs.values, theirs.files.at(_LOSS, "ValueLoss.forward")),
        Case("dpo", partial(theirs.preference, ipo=False), at_dpo),
        Case("ipo", partial(theirs.preference, ipo=True), at_dpo),
    ]
