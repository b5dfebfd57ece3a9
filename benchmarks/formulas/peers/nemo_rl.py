"""NeMo RL: its advantage estimators and loss functions.

The counts are those of all micro-batches, as its learner passes them. Their sequences begin with a
prompt, of which one place stands in front of each response here, with zeros.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files
from benchmarks.formulas.recurring import (
    bound_below,
    estimate_kl,
    penalize_by_k3,
    share_credit,
    whiten_by_bessel,
)
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_ADVANTAGES = "nemo_rl.algorithms.advantage_estimator"
_LOSSES = "nemo_rl.algorithms.loss.loss_functions"
_TOOLS = "nemo_rl.algorithms.utils"
_REAL = {
    _ADVANTAGES: "nemo_rl/algorithms/advantage_estimator.py",
    _LOSSES: "nemo_rl/algorithms/loss/loss_functions.py",
    _TOOLS: "nemo_rl/algorithms/utils.py",
    "nemo_rl.algorithms.loss.interfaces": "nemo_rl/algorithms/loss/interfaces.py",
}
_ABSENT = ("nemo_rl", "ray", "tensordict", "transformers")
# Formulas that it lacks:
#   "gae_cut_off": "a response that was cut off counts as ended"
#   "dr_grpo_mean": "no mean with a constant denominator"
#   "tis_sequence": "only together with GSPO's ratios"
#   "entropy": "no entropy bonus"
#   "ipo": "DPO alone"


_GAE = {
    "gae_lambda": paper.LAM,
    "gae_gamma": paper.GAMMA,
    "normalize_advantages": True,
    "gae_lambda_value": None,
    "gae_lambda_policy": None,
    "length_adaptive_alpha": 0,
}


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    theirs = _NemoRL(files)
    return (
        _advantage_cases(theirs) + _policy_cases(theirs) + _kl_cases(theirs) + _other_cases(theirs)
    )


class _NemoRL:
    """Calls of its estimators and losses."""

    def __init__(self, files: Files) -> None:
        self.advantages, self.losses, self.tools = (
            files.load(_ADVANTAGES),
            files.load(_LOSSES),
            files.load(_TOOLS),
        )
        self.at = partial(files.at, _ADVANTAGES)
        self.files = files

    def estimate(self, given: Rollouts, estimator: Any, **columns: Tensor) -> Any:
        prompts = torch.arange(given.num_rows // GROUP).repeat_interleave(GROUP)[:, None]
        return estimator.compute_advantage(
            prompts, given.score.clone(), given.padded(given.mask.float()), **columns
        )

    def group(self, given: Rollouts, normalize_rewards: bool, leave_one_out: bool) -> Answer:
        config = SimpleNamespace(
            normalize_rewards=normalize_rewards, use_leave_one_out_baseline=leave_one_out
        )
        estimator = self.advantages.GRPOAdvantageEstimator(config, _kl_options(False))
        return Answer(given.flat(self.estimate(given, estimator)))

    def plus_plus(self, given: Rollouts, minus_baseline: bool, kl: bool) -> Answer:
        config = SimpleNamespace(minus_baseline=minus_baseline)
        estimator = self.advantages.ReinforcePlusPlusAdvantageEstimator(config, _kl_options(kl))
        logprobs = {
            "logprobs_policy": given.padded(given.old_logprob),
            "logprobs_reference": given.padded(given.ref_logprob),
        }
        return Answer(given.flat(self.estimate(given, estimator, **logprobs)))

    def gae(self, given: Rollouts, which: int) -> Answer:
        estimator = self.advantages.GeneralizedAdvantageEstimator(_GAE, _kl_options(False))
        return Answer(
            given.flat(self.estimate(given, estimator, values=given.padded(given.old_value))[which])
        )

    def rewards(self, given: Rollouts, kl_type: str) -> Answer:
        estimator = self.advantages.GeneralizedAdvantageEstimator(_GAE, _kl_options(True, kl_type))
        grids = [
            given.padded(x) for x in (given.mask.float(), given.old_logprob, given.ref_logprob)
        ]
        return Answer(given.flat(estimator._build_token_level_rewards(given.score, *grids)))

    def policy(self, given: Rollouts, per_response: bool = False, **options: Any) -> Answer:
        chosen = {
            "reference_policy_kl_penalty": 0.0,
            "ratio_clip_min": paper.CLIP,
            "ratio_clip_max": paper.CLIP,
        }
        loss = self.losses.ClippedPGLossFn(self.losses.ClippedPGLossConfig(**chosen | options))

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            return loss(part.padded(part.logprob), _data(part, advantage_N), *_counts(given))[0]

        return of_loss(given, share)

    def kl_gradient(self, given: Rollouts, **options: Any) -> Answer:
        """The gradient of the loss with the KL less that without it."""
        with_kl = self.policy(given, reference_policy_kl_penalty=1.0, **options)
        return Answer(None, with_kl.known_gradient - self.policy(given).known_gradient)

    def kl(self, given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_BT = self.tools.calculate_kl(
                part.padded(part.logprob), part.padded(part.ref_logprob), name
            )
            mask_BT = part.padded(part.mask.float())
            return self.tools.masked_mean(
                kl_BT, mask_BT, global_normalization_factor=given.num_tokens
            )

        return of_loss(given, share)

    def values(self, given: Rollouts) -> Answer:
        loss = self.losses.MseValueLossFn(
            self.losses.MseValueLossConfig(cliprange=paper.VALUE_CLIP)
        )

        def share(part: Rollouts) -> Tensor:
            columns = {
                "token_mask": part.mask.float(),
                "returns": part.returns,
                "values": part.old_value,
            }
            data = {name: part.padded(x) for name, x in columns.items()} | {
                "sample_mask": torch.ones(part.num_rows)
            }
            return loss(part.padded(part.value)[..., None], data, *_counts(given))[0]

        return of_loss(given, share, by="value")

    def dpo(self, given: Rollouts) -> Answer:
        loss = self.losses.DPOLossFn(
            self.losses.DPOLossConfig(reference_policy_kl_penalty=paper.DPO_BETA)
        )

        def share(part: Rollouts) -> Tensor:
            data = _data(part, part.advantage)  # for DPO their trainer shifts the reference by one
            data["reference_policy_logprobs"] = F.pad(part.padded(part.ref_logprob), (0, 1))
            return loss(part.padded(part.logprob), data, *_counts(given))[0]

        return of_loss(given, share)


def _kl_options(in_reward: bool, kl_type: str = "k1") -> Any:
    return SimpleNamespace(
        use_kl_in_reward=in_reward,
        reference_policy_kl_penalty=paper.BETA,
        reference_policy_kl_type=kl_type,
    )


def _counts(given: Rollouts) -> tuple[Tensor, Tensor]:
    return torch.tensor(given.num_rows), torch.tensor(given.num_tokens)


def _data(part: Rollouts, advantage_N: Tensor) -> dict[str, Tensor]:
    columns = {
        "token_mask": part.mask.float(),
        "advantages": advantage_N,
        "prev_logprobs": part.old_logprob,
        "generation_logprobs": part.sampler_logprob,
        "reference_policy_logprobs": part.ref_logprob,
    }
    grids = {name: F.pad(part.padded(x), (1, 0)) for name, x in columns.items()}
    return grids | {"sample_mask": torch.ones(part.num_rows)}


def _advantage_cases(theirs: _NemoRL) -> list[Case]:
    at_gae = theirs.at("GeneralizedAdvantageEstimator.compute_advantage")
    at_group = theirs.at("GRPOAdvantageEstimator.compute_advantage")
    group = theirs.group
    at_plus = theirs.at("ReinforcePlusPlusAdvantageEstimator.compute_advantage")
    at_rewards = theirs.at("GeneralizedAdvantageEstimator._build_token_level_rewards")
    default = partial(group, leave_one_out=True)
    plain = partial(group, leave_one_out=False)
    return [
        Case("gae_returns", partial(theirs.gae, which=1), at_gae),
        whiten_by_bessel(
            "gae_whitened",
            partial(theirs.gae, which=0),
            at_gae,
            partial(paper.gae_whitened, bessel=1),
        ),
        Case(
            "grpo",
            partial(default, normalize_rewards=True),
            at_group,
            "use_leave_one_out_baseline: true (default)",
            kind="substance",
            because=(
                "mean and deviation are of the others, and nothing is divided where these are equal"
            ),
            instead=partial(paper.group, others=True, deviation="others", least=1e-6),
        ),
        Case(
            "grpo",
            partial(plain, normalize_rewards=True),
            at_group,
            "use_leave_one_out_baseline: false",
        ),
        Case(
            "dr_grpo", partial(plain, normalize_rewards=False), at_group, "normalize_rewards: false"
        ),
        Case(
            "rloo", partial(default, normalize_rewards=False), at_group, "normalize_rewards: false"
        ),
        Case(
            "reinforce_pp",
            partial(theirs.plus_plus, minus_baseline=False, kl=True),
            at_plus,
            "reference_policy_kl_type: k1",
            kind="substance",
            because="a token pays for its own KL alone, not for what follows",
            instead=partial(paper.reinforce_plus_plus, kl="own"),
        ),
        Case(
            "reinforce_pp_baseline",
            partial(theirs.plus_plus, minus_baseline=True, kl=False),
            at_plus,
        ),
        penalize_by_k3(
            partial(theirs.rewards, kl_type="k3"),
            at_rewards,
            "reference_policy_kl_type: k3 (default)",
        ),
        Case(
            "kl_reward",
            partial(theirs.rewards, kl_type="k1"),
            at_rewards,
            "reference_policy_kl_type: k1",
        ),
    ]


def _policy_cases(theirs: _NemoRL) -> list[Case]:
    at = theirs.files.at(_LOSSES, "ClippedPGLossFn.__call__")
    policy = theirs.policy
    low, high = paper.ICEPOP
    tis = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": "tis",
        "truncated_importance_sampling_ratio": paper.TIS_HIGH,
    }
    icepop = tis | {
        "truncated_importance_sampling_type": "icepop",
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": low,
    }
    clip = {"ratio_clip_min": paper.GSPO_CLIP, "ratio_clip_max": paper.GSPO_CLIP}
    gspo = partial(policy, token_level_loss=False, sequence_level_importance_ratios=True, **clip)
    return [
        Case("ppo_tokens", policy, at),
        Case(
            "ppo_responses", partial(policy, token_level_loss=False), at, "token_level_loss: false"
        ),
        Case("clip_higher", partial(policy, ratio_clip_max=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, ratio_clip_c=paper.DUAL_CLIP), at),
        Case("gspo", partial(gspo, per_response=True), at),
        share_credit(gspo, at),
        bound_below(partial(policy, use_cispo=True), at, "ratio_clip_min: 0.2"),
        Case(
            "cispo", partial(policy, use_cispo=True, ratio_clip_min=1e9), at, "ratio_clip_min: 1e9"
        ),
        Case("tis_token", partial(policy, **tis), at),
        Case("icepop", partial(policy, **icepop), at),
    ]


def _kl_cases(theirs: _NemoRL) -> list[Case]:
    at = theirs.files.at(_LOSSES, "ClippedPGLossFn.__call__")
    at_kl = theirs.files.at(_TOOLS, "calculate_kl")
    unbounded = {"use_on_policy_kl_approximation": True, "kl_output_clamp_value": None}
    return [
        *estimate_kl(theirs.kl, at_kl),
        Case(
            "kl_loss",
            theirs.kl_gradient,
            at,
            "reference_policy_kl_type: k3 (default)",
            kind="convention",
            because="without π/π_old: as if π had sampled; 0 where k3 is above 10",
            instead=partial(paper.kl_gradient, factor="one", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(theirs.kl_gradient, **unbounded),
            at,
            "use_on_policy_kl_approximation: true, kl_output_clamp_value: null",
            kind="convention",
            because="π/π_sampler instead of π/π_old",
            instead=partial(paper.kl_gradient, factor="sampler"),
        ),
    ]


def _other_cases(theirs: _NemoRL) -> list[Case]:
    return [
        Case("value_loss", theirs.values, theirs.files.at(_LOSSES, "MseValueLossFn.__call__")),
        Case("dpo", theirs.dpo, theirs.files.at(_LOSSES, "DPOLossFn._dpo_loss")),
    ]
