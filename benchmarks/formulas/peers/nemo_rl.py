"""NeMo RL: its advantage estimators and loss functions.

The counts are those of all micro-batches, as its learner passes them. Their sequences begin with a prompt, of which one
place stands in front of each response here, with zeros.
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
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_ADVANTAGES, _LOSSES = "nemo_rl.algorithms.advantage_estimator", "nemo_rl.algorithms.loss.loss_functions"
_TOOLS = "nemo_rl.algorithms.utils"
_REAL = {
    _ADVANTAGES: "nemo_rl/algorithms/advantage_estimator.py",
    _LOSSES: "nemo_rl/algorithms/loss/loss_functions.py",
    _TOOLS: "nemo_rl/algorithms/utils.py",
    "nemo_rl.algorithms.loss.interfaces": "nemo_rl/algorithms/loss/interfaces.py",
}
_ABSENT = ("nemo_rl", "ray", "tensordict", "transformers")
_BESSEL = {"kind": "convention", "because": "variance with n − 1"}


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    return _advantages(files) + _losses(files) + _divergences(files)


def _advantages(files: Files) -> list[Case]:
    module = files.load(_ADVANTAGES)
    prompts = torch.arange(4).repeat_interleave(GROUP)[:, None]

    def estimate(given: Rollouts, name: str, options: dict[str, Any], kl_type: str = "k1", **given_kl: Any) -> Any:
        loss = SimpleNamespace(
            use_kl_in_reward=bool(given_kl), reference_policy_kl_penalty=paper.BETA, reference_policy_kl_type=kl_type
        )
        estimator = getattr(module, name)(options if "gae_lambda" in options else SimpleNamespace(**options), loss)
        mask_BT = given.padded(given.mask.float())
        return estimator.compute_advantage(prompts, given.score.clone(), mask_BT, **given_kl)

    def group(given: Rollouts, **options: bool) -> Answer:
        return Answer(given.flat(estimate(given, "GRPOAdvantageEstimator", options)))

    def plus_plus(given: Rollouts, minus_baseline: bool, kl: bool, kl_type: str = "k1") -> Answer:
        options = {"minus_baseline": minus_baseline}
        logprobs = {
            "logprobs_policy": given.padded(given.old_logprob),
            "logprobs_reference": given.padded(given.ref_logprob),
        }
        advantage_BT = estimate(given, "ReinforcePlusPlusAdvantageEstimator", options, kl_type, **logprobs if kl else {})
        return Answer(given.flat(advantage_BT))

    gae_options = {
        "gae_lambda": paper.LAM,
        "gae_gamma": paper.GAMMA,
        "normalize_advantages": True,
        "gae_lambda_value": None,
        "gae_lambda_policy": None,
        "length_adaptive_alpha": 0,
    }

    def gae(given: Rollouts, which: int) -> Answer:
        values = given.padded(given.old_value)
        return Answer(
            given.flat(estimate(given, "GeneralizedAdvantageEstimator", gae_options, values=values)[which])
        )

    def rewards(given: Rollouts, kl_type: str) -> Answer:
        loss = SimpleNamespace(
            use_kl_in_reward=True, reference_policy_kl_penalty=paper.BETA, reference_policy_kl_type=kl_type
        )
        columns = given.mask.float(), given.old_logprob, given.ref_logprob
        grids = [given.padded(x) for x in columns]
        estimator = module.GeneralizedAdvantageEstimator(gae_options, loss)
        return Answer(given.flat(estimator._build_token_level_rewards(given.score, *grids)))

    at = partial(files.at, _ADVANTAGES)
    at_gae, at_group = at("GeneralizedAdvantageEstimator.compute_advantage"), at("GRPOAdvantageEstimator.compute_advantage")
    at_plus = at("ReinforcePlusPlusAdvantageEstimator.compute_advantage")
    at_rewards = at("GeneralizedAdvantageEstimator._build_token_level_rewards")
    return [
        Case("gae_returns", partial(gae, which=1), at_gae),
        Case("gae_whitened", partial(gae, which=0), at_gae, instead=partial(paper.gae_whitened, bessel=1), **_BESSEL),
        Case(
            "grpo",
            partial(group, normalize_rewards=True, use_leave_one_out_baseline=True),
            at_group,
            "use_leave_one_out_baseline: true (default)",
            kind="substance",
            because="mean and deviation are of the others; not divided where these are equal",
            instead=partial(paper.group, others=True, deviation="others", least=1e-6),
        ),
        Case(
            "grpo",
            partial(group, normalize_rewards=True, use_leave_one_out_baseline=False),
            at_group,
            "use_leave_one_out_baseline: false",
        ),
        Case("dr_grpo", partial(group, normalize_rewards=False, use_leave_one_out_baseline=False), at_group),
        Case("rloo", partial(group, normalize_rewards=False, use_leave_one_out_baseline=True), at_group),
        Case(
            "reinforce_pp",
            partial(plus_plus, minus_baseline=False, kl=True),
            at_plus,
            "reference_policy_kl_type: k1",
            kind="substance",
            because="a token pays for its own KL alone, not for what follows",
            instead=partial(paper.reinforce_plus_plus, kl="own"),
        ),
        Case("reinforce_pp_baseline", partial(plus_plus, minus_baseline=True, kl=False), at_plus),
        Case(
            "kl_reward",
            partial(rewards, kl_type="k3"),
            at_rewards,
            "reference_policy_kl_type: k3 (default)",
            kind="substance",
            because="k3, whose expected gradient in a reward is not that of the KL, at most 10",
            instead=partial(paper.rewards_with_kl, estimate="k3", bound=10.0),
        ),
        Case("kl_reward", partial(rewards, kl_type="k1"), at_rewards, "reference_policy_kl_type: k1"),
    ]


def _after_prompt(part: Rollouts, x_N: Tensor) -> Tensor:
    return F.pad(part.padded(x_N), (1, 0))


def _data(part: Rollouts, advantage_N: Tensor) -> dict[str, Tensor]:
    columns = {
        "token_mask": part.mask.float(),
        "advantages": advantage_N,
        "prev_logprobs": part.old_logprob,
        "generation_logprobs": part.sampler_logprob,
        "reference_policy_logprobs": part.ref_logprob,
    }
    grids = {name: _after_prompt(part, x) for name, x in columns.items()}
    return grids | {"sample_mask": torch.ones(part.num_rows)}


def _losses(files: Files) -> list[Case]:
    module = files.load(_LOSSES)

    def policy(given: Rollouts, per_response: bool = False, **options: Any) -> Answer:
        chosen = {"reference_policy_kl_penalty": 0.0, "ratio_clip_min": paper.CLIP, "ratio_clip_max": paper.CLIP}
        loss = module.ClippedPGLossFn(module.ClippedPGLossConfig(**chosen | options))
        counts = torch.tensor(given.num_rows), torch.tensor(given.num_tokens)

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            return loss(part.padded(part.logprob), _data(part, advantage_N), *counts)[0]

        return of_loss(given, share)

    def kl_gradient(given: Rollouts, **options: Any) -> Answer:
        """The gradient of the loss with the KL less that without it."""
        without, penalty = policy(given, **options), {"reference_policy_kl_penalty": 1.0}
        return Answer(None, _less(policy(given, **options | penalty).gradient, without.gradient))

    def values(given: Rollouts) -> Answer:
        loss = module.MseValueLossFn(module.MseValueLossConfig(cliprange=paper.VALUE_CLIP))
        counts = torch.tensor(given.num_rows), torch.tensor(given.num_tokens)

        def share(part: Rollouts) -> Tensor:
            columns = {"token_mask": part.mask.float(), "returns": part.returns, "values": part.old_value}
            data = {name: part.padded(x) for name, x in columns.items()} | {"sample_mask": torch.ones(part.num_rows)}
            return loss(part.padded(part.value)[..., None], data, *counts)[0]

        return of_loss(given, share, by="value")

    def dpo(given: Rollouts) -> Answer:
        loss = module.DPOLossFn(module.DPOLossConfig(reference_policy_kl_penalty=paper.DPO_BETA))
        counts = torch.tensor(given.num_rows), torch.tensor(given.num_tokens)

        def share(part: Rollouts) -> Tensor:
            data = _data(part, part.advantage)  # their trainer shifts the reference's log-probabilities by one for DPO
            data["reference_policy_logprobs"] = F.pad(part.padded(part.ref_logprob), (0, 1))
            return loss(part.padded(part.logprob), data, *counts)[0]

        return of_loss(given, share)

    at = files.at(_LOSSES, "ClippedPGLossFn.__call__")
    corrected = {"use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": paper.TIS_HIGH}
    low, high = paper.ICEPOP
    icepop = {
        "truncated_importance_sampling_type": "icepop",
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": low,
    }
    gspo = {"sequence_level_importance_ratios": True, "ratio_clip_min": paper.GSPO_CLIP, "ratio_clip_max": paper.GSPO_CLIP}
    return [
        Case("ppo_tokens", policy, at),
        Case("ppo_responses", partial(policy, token_level_loss=False), at, "token_level_loss: false"),
        Case("clip_higher", partial(policy, ratio_clip_max=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, ratio_clip_c=paper.DUAL_CLIP), at),
        Case("gspo", partial(policy, per_response=True, token_level_loss=False, **gspo), at),
        Case(
            "cispo",
            partial(policy, use_cispo=True),
            at,
            kind="convention",
            because="a lower bound too",
            instead=partial(paper.cispo, low=paper.CLIP),
        ),
        Case("cispo", partial(policy, use_cispo=True, ratio_clip_min=1e9), at, "ratio_clip_min: 1e9"),
        Case("tis_token", partial(policy, truncated_importance_sampling_type="tis", **corrected), at),
        Case("icepop", partial(policy, **corrected | icepop), at),
        Case(
            "kl_loss",
            kl_gradient,
            at,
            "reference_policy_kl_type: k3 (default)",
            kind="convention",
            because="without π/π_old: as if π had sampled; 0 where k3 is above 10",
            instead=partial(paper.kl_gradient, factor="one", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(kl_gradient, use_on_policy_kl_approximation=True, kl_output_clamp_value=None),
            at,
            "use_on_policy_kl_approximation: true, kl_output_clamp_value: null",
            kind="convention",
            because="weighed by π/π_sampler",
            instead=partial(_weighed_by_sampler),
        ),
        Case("value_loss", values, files.at(_LOSSES, "MseValueLossFn.__call__")),
        Case("dpo", dpo, files.at(_LOSSES, "DPOLossFn._dpo_loss")),
    ]


def _divergences(files: Files) -> list[Case]:
    tools, at = files.load(_TOOLS), files.at(_TOOLS, "calculate_kl")

    def kl(given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_BT = tools.calculate_kl(part.padded(part.logprob), part.padded(part.ref_logprob), name)
            return tools.masked_mean(kl_BT, part.padded(part.mask.float()), global_normalization_factor=given.num_tokens)

        return of_loss(given, share)

    bounded = partial(paper.kl_estimate, name="k3", bound=10.0)
    return [
        Case("k1", partial(kl, name="k1"), at),
        Case("k2", partial(kl, name="k2"), at),
        Case("k3", partial(kl, name="k3"), at, "", "convention", "at most 10, no gradient above", bounded),
    ]


def _weighed_by_sampler(given: Rollouts) -> Answer:
    """The gradient of the KL from tokens that the sampler sampled: π/π_sampler·Δ·∇log π."""
    given = given.double()
    ratio_N = torch.exp(given.logprob - given.sampler_logprob)
    return Answer(None, given.trained(ratio_N * (given.logprob - given.ref_logprob)) / given.num_tokens)


def _less(x: Tensor | None, y: Tensor | None) -> Tensor:
    assert x is not None and y is not None, "a loss has a gradient"
    return x - y
