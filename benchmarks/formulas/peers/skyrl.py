"""SkyRL: its advantage estimators and policy losses.

Its trainer gives the estimators a mask of all tokens of a response, a tool's too, and the losses one without them.
A policy loss is a sum; its mean is in the advantages, which are divided before (`apply_loss_reduction_to_…`). KL and
entropy are added to it by the worker, a mean in each micro-batch, weighed by the share of that micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files, bind
from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts, of_loss

_CORE, _OFF_POLICY = "skyrl.backends.skyrl_train.utils.ppo_utils", "skyrl.backends.skyrl_train.utils.off_policy_correction_utils"
_TOOLS = "skyrl.backends.skyrl_train.utils.torch_utils"
_TRAINER = "skyrl.train.trainer"
_FOLDER = "skyrl/backends/skyrl_train/utils"
_REAL = {
    _CORE: f"{_FOLDER}/ppo_utils.py",
    _OFF_POLICY: f"{_FOLDER}/off_policy_correction_utils.py",
    _TOOLS: f"{_FOLDER}/torch_utils.py",
    _TRAINER: "skyrl/train/trainer.py",
}
_ABSENT = ("skyrl", "ray", "jaxtyping", "loguru", "omegaconf", "flash_attn", "cloudpickle", "tqdm", "transformers")
_WORKER = "skyrl/backends/skyrl_train/workers/worker.py"


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    return _advantages(files) + _losses(files) + _divergences(files)


def _advantages(files: Files) -> list[Case]:
    core = files.load(_CORE)

    def estimate(given: Rollouts, function: Any, which: int = 0, kl: bool = False, **options: Any) -> Answer:
        reward_BT, mask_BT = given.padded(given.rewards()), given.padded(torch.ones_like(given.score[given.row]))
        if kl:
            reward_BT = reward_BT - paper.BETA * estimates(given, "k1")
        more = {"index": np.repeat(np.arange(4), GROUP), "values": given.padded(given.old_value)}
        chosen: dict[str, Any] = {"gamma": 1.0, "lambd": paper.LAM} | options
        return Answer(given.flat(function(reward_BT, response_mask=mask_BT, **more, **chosen)[which]))

    def estimates(given: Rollouts, name: str) -> Tensor:
        columns = given.old_logprob, given.ref_logprob, given.mask.float()
        return core.compute_approx_kl(*(given.padded(x) for x in columns), kl_estimator_type=name)

    def rewards(given: Rollouts, name: str) -> Answer:
        return Answer(given.rewards() - given.flat(paper.BETA * estimates(given, name)))

    def normalized(given: Rollouts) -> Answer:
        algorithm = SimpleNamespace(advantage_batch_normalize=True, loss_reduction="token_mean", max_seq_len=MAX_TOKENS)
        config = SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm, micro_train_batch_size_per_gpu=1))
        answer = estimate(given, grpo, grpo_norm_by_std=False)
        assert answer.value is not None, "an advantage has a value"
        columns = {
            "advantages": answer.value,
            "response_mask": torch.ones_like(answer.value),
            "loss_mask": given.mask.float(),
        }
        data = _Rows({name: given.padded(x) for name, x in columns.items()})
        trainer = bind(files.load(_TRAINER).RayPPOTrainer, cfg=config)
        scaled_BT = trainer._normalize_advantages(data, [(0, given.num_rows)])["advantages"]
        return Answer(given.num_tokens * given.flat(scaled_BT))

    at, gae = partial(files.at, _CORE), core.compute_gae_advantage_return
    grpo, rloo = core.compute_grpo_outcome_advantage, core.compute_rloo_outcome_advantage
    plus_plus = core.compute_reinforce_plus_plus_outcome_advantage
    in_trainer = files.where("skyrl/train/trainer.py", "rewards = rewards - kl * max(0, kl_loss_coef)")
    through = {"kind": "substance", "because": "a tool's tokens are steps, with values of their own"}
    return [
        Case(
            "gae_returns",
            partial(estimate, function=gae, which=1, gamma=paper.GAMMA),
            at("compute_gae_advantage_return"),
            instead=partial(paper.gae_returns, skip=False, own_values=True),
            **through,
        ),
        Case(
            "gae_whitened",
            partial(estimate, function=gae, gamma=paper.GAMMA),
            at("compute_gae_advantage_return"),
            kind="substance",
            because="a tool's tokens are steps, with values of their own, and whitened with the others; n − 1",
            instead=partial(paper.gae_whitened, skip=False, own_values=True, bessel=1, of_all=True),
        ),
        Case("grpo", partial(estimate, function=grpo), at("compute_grpo_outcome_advantage")),
        Case(
            "dr_grpo",
            partial(estimate, function=grpo, grpo_norm_by_std=False),
            at("compute_grpo_outcome_advantage"),
            "grpo_norm_by_std: false",
        ),
        Case("rloo", partial(estimate, function=rloo), at("compute_rloo_outcome_advantage")),
        Case(
            "reinforce_pp",
            partial(estimate, function=plus_plus, kl=True),
            at("compute_reinforce_plus_plus_outcome_advantage"),
            kind="substance",
            because="a tool's tokens are whitened with the others; n − 1",
            instead=partial(paper.reinforce_plus_plus, bessel=1, of_all=True),
        ),
        Case(
            "reinforce_pp_baseline",
            normalized,
            files.at(_TRAINER, "RayPPOTrainer._normalize_advantages"),
            "grpo_norm_by_std: false, advantage_batch_normalize: true",
            kind="substance",
            because="the mean is over the padded grid, and a tool's tokens count",
            instead=partial(
                paper.reinforce_plus_plus, baseline=True, kl="none", of_all=True, padded_mean=True
            ),
        ),
        Case(
            "kl_reward",
            partial(rewards, name="k3"),
            in_trainer,
            "kl_estimator_type: k3 (default)",
            kind="substance",
            because="k3, whose expected gradient in a reward is not that of the KL, at most 10",
            instead=partial(paper.rewards_with_kl, estimate="k3", bound=10.0),
        ),
        Case("kl_reward", partial(rewards, name="k1"), in_trainer, "kl_estimator_type: k1"),
    ]


def _losses(files: Files) -> list[Case]:
    core = files.load(_CORE)

    def policy(
        given: Rollouts, function: Any = core.ppo_policy_loss, reduction: str = "token_mean", **options: Any
    ) -> Answer:
        per_response, correction = options.pop("per_response", False), options.pop("correction", {})
        config: Any = SimpleNamespace(
            **{
                "policy_loss_type": "regular",
                "eps_clip_low": paper.CLIP,
                "eps_clip_high": paper.CLIP,
                "loss_reduction": reduction,
                "cispo": SimpleNamespace(cispo_anchor="old", cispo_eps_clip_low=1e9, cispo_eps_clip_high=paper.CLIP),
                "off_policy_correction": SimpleNamespace(**_NO_CORRECTION | correction),
            }
            | options
        )
        advantage_N = given.response_advantage[given.row] if per_response else given.advantage
        grids = given.padded(advantage_N), given.padded(given.mask.float())
        sizes = {"micro_batch_size": 1, "max_seq_len": MAX_TOKENS}
        shares_BT = core.apply_loss_reduction_to_advantages_minibatch(*grids, reduction, **sizes)

        def share(part: Rollouts) -> Tensor:
            columns = part.logprob, part.old_logprob, part.advantage
            mask_BT, sampler_BT = part.padded(part.mask.float()), part.padded(part.sampler_logprob)
            padded = [part.padded(x) for x in columns]
            return function(*padded, config=config, loss_mask=mask_BT, rollout_logprobs=sampler_BT)[0]

        return of_loss(replace(given, advantage=given.flat(shares_BT)), share)

    def values(given: Rollouts) -> Answer:
        config: Any = SimpleNamespace(value_clip=paper.VALUE_CLIP)

        def share(part: Rollouts) -> Tensor:
            columns = part.value, part.old_value, part.returns
            loss = core.ppo_critic_loss(*(part.padded(x) for x in columns), config, part.padded(part.mask.float()))[0]
            return loss * part.num_rows / given.num_rows

        return of_loss(given, share, by="value")

    at = partial(files.at, _CORE)
    tis = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": paper.TIS_HIGH}
    of_sequences = {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": paper.TIS_HIGH}
    low, high = paper.ICEPOP
    mask = {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
    gspo = {"per_response": True, "eps_clip_low": paper.GSPO_CLIP, "eps_clip_high": paper.GSPO_CLIP}
    at_tis = files.at(_OFF_POLICY, "compute_tis_ratio")
    dual = {"policy_loss_type": "dual_clip", "clip_ratio_c": paper.DUAL_CLIP}
    constant = "seq_mean_token_sum_norm"
    return [
        Case("ppo_tokens", policy, at("ppo_policy_loss"), "token_mean"),
        Case("ppo_responses", partial(policy, reduction="sequence_mean"), at("ppo_policy_loss"), "sequence_mean"),
        Case("dr_grpo_mean", partial(policy, reduction=constant), at("ppo_policy_loss"), constant),
        Case("clip_higher", partial(policy, eps_clip_high=paper.CLIP_HIGH), at("ppo_policy_loss")),
        Case("dual_clip", partial(policy, **dual), at("ppo_policy_loss"), "dual_clip"),
        Case(
            "gspo",
            partial(policy, function=core.gspo_policy_loss, reduction="sequence_mean", **gspo),
            at("gspo_policy_loss"),
        ),
        Case(
            "cispo",
            partial(policy, function=core.compute_policy_loss_cispo),
            at("compute_policy_loss_cispo"),
            "cispo_eps_clip_low: 1e9",
        ),
        Case("tis_token", partial(policy, correction=tis), at_tis),
        Case("tis_sequence", partial(policy, correction=of_sequences), at_tis),
        Case(
            "icepop",
            partial(policy, correction=tis | mask),
            files.at(_OFF_POLICY, "compute_token_mask"),
            "token_mask_is_threshold_* with tis_ratio_type: token",
        ),
        Case(
            "value_loss",
            values,
            at("ppo_critic_loss"),
            kind="convention",
            because="mean over responses of means over tokens",
            instead=partial(paper.value_loss, mean="responses"),
        ),
    ]


def _divergences(files: Files) -> list[Case]:
    core, tools = files.load(_CORE), files.load(_TOOLS)
    at, in_worker = files.at(_CORE, "compute_approx_kl"), files.where(_WORKER, "kl_loss = masked_mean(kl_loss")

    def estimate(given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            mask_BT = part.padded(part.mask.float())
            kl_BT = core.compute_approx_kl(part.padded(part.logprob), part.padded(part.ref_logprob), mask_BT, name)
            return tools.masked_mean(kl_BT, mask_BT) * part.num_tokens / given.num_tokens

        return of_loss(given, share)

    def in_loss(given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            mask_BT = part.padded(part.mask.float())
            kl_BT = core.compute_approx_kl(part.padded(part.logprob), part.padded(part.ref_logprob), mask_BT, name)
            return tools.masked_mean(kl_BT, mask_BT, dim=-1).mean() * part.num_rows / given.num_rows

        return Answer(None, of_loss(given, share).gradient)

    def entropy(given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            entropy_BT = tools.chunked_entropy_from_logits(part.padded(part.logits), requires_grad=True)
            return tools.masked_mean(entropy_BT, part.padded(part.mask.float())) * part.num_rows / given.num_rows

        return of_loss(given, share, by="logits")

    bounded = partial(paper.kl_estimate, name="k3", bound=10.0)
    one = partial(paper.kl_gradient, factor="one", mean="responses")
    return [
        Case("k1", partial(estimate, name="k1"), at),
        Case("k2", partial(estimate, name="k2"), at),
        Case("k3", partial(estimate, name="k3"), at, "", "convention", "at most 10, no gradient above", bounded),
        Case(
            "kl_loss",
            partial(in_loss, name="k3"),
            in_worker,
            "kl_estimator_type: k3 (default)",
            kind="substance",
            because="k3 differentiated: the gradient of KL(π_ref ‖ π), 0 above 10; always a mean over responses",
            instead=partial(one, slope="k3", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(in_loss, name="k2"),
            in_worker,
            "kl_estimator_type: k2",
            kind="convention",
            because="without π/π_old: as if π had sampled; always a mean over responses",
            instead=one,
        ),
        Case(
            "entropy",
            entropy,
            files.where(_WORKER, "entropy = masked_mean(entropy_BS, loss_mask)"),
            kind="convention",
            because="mean over tokens in each micro-batch, then over micro-batches",
            instead=_entropy_by_micro_batch,
        ),
    ]


_NO_CORRECTION = dict.fromkeys(
    (
        "tis_ratio_type",
        "sequence_mask_metric",
        "outlier_token_is_threshold_low",
        "outlier_token_is_threshold_high",
        "token_mask_is_threshold_low",
        "token_mask_is_threshold_high",
    )
)


def _entropy_by_micro_batch(given: Rollouts) -> Answer:
    answers = [(paper.entropy(part), part.num_rows / given.num_rows) for part in given.micro_batches()]
    value = sum((share * answer.value for answer, share in answers if answer.value is not None), torch.zeros(()))
    gradient = torch.cat([share * answer.gradient for answer, share in answers if answer.gradient is not None])
    return Answer(value, gradient)


class _Rows(dict[Any, Any]):
    """Columns by name; a slice of rows."""

    def __missing__(self, rows: slice) -> _Rows:
        return _Rows({name: x[rows] for name, x in self.items()})
