"""SkyRL: its advantage estimators and policy losses.

Its trainer gives the estimators a mask of all tokens of a response, a tool's too, and the losses one without them. A
policy loss is a sum; its mean is in the advantages, which are divided before. KL and entropy are added by the worker, a
mean in each micro-batch, weighed by its share of the responses; the critic's loss likewise.
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
from benchmarks.formulas.recurring import differentiate_k2, differentiate_k3, estimate_kl, penalize_by_k3
from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts, of_loss

_UTILS, _FOLDER = "skyrl.backends.skyrl_train.utils", "skyrl/backends/skyrl_train/utils"
_CORE, _TOOLS = f"{_UTILS}.ppo_utils", f"{_UTILS}.torch_utils"
_OFF_POLICY, _TRAINER = f"{_UTILS}.off_policy_correction_utils", "skyrl.train.trainer"
_REAL = {
    _CORE: f"{_FOLDER}/ppo_utils.py",
    _OFF_POLICY: f"{_FOLDER}/off_policy_correction_utils.py",
    _TOOLS: f"{_FOLDER}/torch_utils.py",
    _TRAINER: "skyrl/train/trainer.py",
}
_ABSENT = ("skyrl", "ray", "jaxtyping", "loguru", "omegaconf", "flash_attn", "cloudpickle", "tqdm", "transformers")
_WORKER = "skyrl/backends/skyrl_train/workers/worker.py"
LACKS = {
    "gae_cut_off": "a response that was cut off counts as ended",
    **dict.fromkeys(("dpo", "ipo"), "no training on preferences"),
}


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    theirs = _SkyRL(files)
    return _advantage_cases(theirs) + _policy_cases(theirs) + _kl_cases(theirs) + _other_cases(theirs)


class _SkyRL:
    """Calls of its functions."""

    def __init__(self, files: Files) -> None:
        self.core, self.tools, self.trainer = files.load(_CORE), files.load(_TOOLS), files.load(_TRAINER)
        self.at, self.files = partial(files.at, _CORE), files

    def advantages(self, given: Rollouts, name: str, which: int = 0, kl: bool = False, **options: Any) -> Answer:
        reward_BT = given.padded(given.rewards())
        if kl:
            reward_BT = reward_BT - paper.BETA * self.estimate(given, given.old_logprob, "k1")
        chosen: dict[str, Any] = {
            "response_mask": given.padded(torch.ones_like(given.logprob)),
            "index": np.repeat(np.arange(given.num_rows // GROUP), GROUP),
            "values": given.padded(given.old_value),
            "gamma": 1.0,
            "lambd": paper.LAM,
        }
        return Answer(given.flat(getattr(self.core, name)(reward_BT, **chosen | options)[which]))

    def normalized(self, given: Rollouts) -> Answer:
        answer = self.advantages(given, "compute_grpo_outcome_advantage", grpo_norm_by_std=False)
        columns = {
            "advantages": answer.known_value,
            "response_mask": torch.ones_like(given.logprob),
            "loss_mask": given.mask.float(),
        }
        data = _Rows({name: given.padded(x) for name, x in columns.items()})
        algorithm = SimpleNamespace(advantage_batch_normalize=True, loss_reduction="token_mean", max_seq_len=MAX_TOKENS)
        config = SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm, micro_train_batch_size_per_gpu=1))
        trainer = bind(self.trainer.RayPPOTrainer, cfg=config)
        scaled_BT = trainer._normalize_advantages(data, [(0, given.num_rows)])["advantages"]
        return Answer(given.num_tokens * given.flat(scaled_BT))

    def estimate(self, given: Rollouts, logprob_N: Tensor, name: str) -> Tensor:
        grids = [given.padded(x) for x in (logprob_N, given.ref_logprob, given.mask.float())]
        return self.core.compute_approx_kl(*grids, kl_estimator_type=name)

    def rewards(self, given: Rollouts, name: str) -> Answer:
        kl_N = given.flat(self.estimate(given, given.old_logprob, name))
        return Answer(given.rewards() - kl_N * max(0, paper.BETA))

    def policy(
        self,
        given: Rollouts,
        name: str = "ppo_policy_loss",
        reduction: str = "token_mean",
        per_response: bool = False,
        correction: dict[str, Any] | None = None,
        **options: Any,
    ) -> Answer:
        chosen = {
            "policy_loss_type": "regular",
            "eps_clip_low": paper.CLIP,
            "eps_clip_high": paper.CLIP,
            "loss_reduction": reduction,
            "cispo": SimpleNamespace(cispo_anchor="old", cispo_eps_clip_low=1e9, cispo_eps_clip_high=paper.CLIP),
            "off_policy_correction": SimpleNamespace(**_NO_CORRECTION | (correction or {})),
        }
        config: Any = SimpleNamespace(**chosen | options)
        advantage_N = given.response_advantage[given.row] if per_response else given.advantage
        grids = given.padded(advantage_N), given.padded(given.mask.float())
        shares_BT = self.core.apply_loss_reduction_to_advantages_minibatch(*grids, reduction, 1, MAX_TOKENS)

        def share(part: Rollouts) -> Tensor:
            columns = part.logprob, part.old_logprob, part.advantage, part.mask.float(), part.sampler_logprob
            *three, mask_BT, sampler_BT = (part.padded(x) for x in columns)
            return getattr(self.core, name)(*three, config, loss_mask=mask_BT, rollout_logprobs=sampler_BT)[0]

        return of_loss(replace(given, advantage=given.flat(shares_BT)), share)

    def values(self, given: Rollouts) -> Answer:
        config: Any = SimpleNamespace(value_clip=paper.VALUE_CLIP)

        def share(part: Rollouts) -> Tensor:
            *three, mask_BT = (part.padded(x) for x in (part.value, part.old_value, part.returns, part.mask.float()))
            return self.core.ppo_critic_loss(*three, config, mask_BT)[0] * part.num_rows / given.num_rows

        return of_loss(given, share, by="value")

    def kl(self, given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            return self.estimate(part, part.logprob, name).sum() / given.num_tokens

        return of_loss(given, share)

    def kl_gradient(self, given: Rollouts, name: str) -> Answer:
        """As the worker adds it."""

        def share(part: Rollouts) -> Tensor:
            kl_BT = self.estimate(part, part.logprob, name)
            mean_B = self.tools.masked_mean(kl_BT, part.padded(part.mask.float()), dim=-1)
            return mean_B.mean() * part.num_rows / given.num_rows

        return Answer(None, of_loss(given, share).gradient)

    def entropy(self, given: Rollouts) -> Answer:
        """As the worker adds it."""

        def share(part: Rollouts) -> Tensor:
            entropy_BT = self.tools.chunked_entropy_from_logits(part.padded(part.logits), requires_grad=True)
            mean = self.tools.masked_mean(entropy_BT, part.padded(part.mask.float()))
            return mean * part.num_rows / given.num_rows

        return of_loss(given, share, by="logits")


def _advantage_cases(theirs: _SkyRL) -> list[Case]:
    grpo, rloo = "compute_grpo_outcome_advantage", "compute_rloo_outcome_advantage"
    gae, plus = "compute_gae_advantage_return", "compute_reinforce_plus_plus_outcome_advantage"
    in_trainer = theirs.files.where("skyrl/train/trainer.py", "rewards = rewards - kl * max(0, kl_loss_coef)")
    own: dict[str, Any] = {"skip": False, "own_values": True}
    return [
        Case(
            "gae_returns",
            partial(theirs.advantages, name=gae, which=1, gamma=paper.GAMMA),
            theirs.at(gae),
            kind="substance",
            because="a tool's tokens are steps, with values of their own",
            instead=partial(paper.gae_returns, **own),
        ),
        Case(
            "gae_whitened",
            partial(theirs.advantages, name=gae, gamma=paper.GAMMA),
            theirs.at(gae),
            kind="substance",
            because="a tool's tokens are steps, with values of their own, and whitened with the others; n − 1",
            instead=partial(paper.gae_whitened, bessel=1, of_all=True, **own),
        ),
        Case("grpo", partial(theirs.advantages, name=grpo), theirs.at(grpo)),
        Case("dr_grpo", partial(theirs.advantages, name=grpo, grpo_norm_by_std=False), theirs.at(grpo)),
        Case("rloo", partial(theirs.advantages, name=rloo), theirs.at(rloo)),
        Case(
            "reinforce_pp",
            partial(theirs.advantages, name=plus, kl=True),
            theirs.at(plus),
            kind="substance",
            because="a tool's tokens are whitened with the others; n − 1",
            instead=partial(paper.reinforce_plus_plus, bessel=1, of_all=True),
        ),
        Case(
            "reinforce_pp_baseline",
            theirs.normalized,
            theirs.files.at(_TRAINER, "RayPPOTrainer._normalize_advantages"),
            "grpo_norm_by_std: false, advantage_batch_normalize: true",
            kind="substance",
            because="the mean is over the padded grid, and a tool's tokens count",
            instead=partial(paper.reinforce_plus_plus, baseline=True, kl="none", of_all=True, padded_mean=True),
        ),
        penalize_by_k3(partial(theirs.rewards, name="k3"), in_trainer, "kl_estimator_type: k3 (default)"),
        Case("kl_reward", partial(theirs.rewards, name="k1"), in_trainer, "kl_estimator_type: k1"),
    ]


def _policy_cases(theirs: _SkyRL) -> list[Case]:
    policy, at = theirs.policy, theirs.at("ppo_policy_loss")
    tis = {"tis_ratio_type": "token", "token_tis_ratio_clip_high": paper.TIS_HIGH}
    sequence = {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": paper.TIS_HIGH}
    icepop = dict(zip(("token_mask_is_threshold_low", "token_mask_is_threshold_high"), paper.ICEPOP, strict=True)) | tis
    dual = {"policy_loss_type": "dual_clip", "clip_ratio_c": paper.DUAL_CLIP}
    clip = {"eps_clip_low": paper.GSPO_CLIP, "eps_clip_high": paper.GSPO_CLIP}
    gspo = partial(policy, name="gspo_policy_loss", reduction="sequence_mean", **clip)
    cispo, constant = "compute_policy_loss_cispo", "seq_mean_token_sum_norm"
    at_tis, at_mask = (theirs.files.at(_OFF_POLICY, name) for name in ("compute_tis_ratio", "compute_token_mask"))
    return [
        Case("ppo_tokens", policy, at, "token_mean (default)"),
        Case("ppo_responses", partial(policy, reduction="sequence_mean"), at, "sequence_mean"),
        Case("dr_grpo_mean", partial(policy, reduction=constant), at, constant),
        Case("clip_higher", partial(policy, eps_clip_high=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, **dual), at, "dual_clip"),
        Case("gspo", partial(gspo, per_response=True), theirs.at("gspo_policy_loss")),
        Case("gspo_token", gspo, theirs.at("gspo_policy_loss")),
        Case("cispo", partial(policy, name=cispo), theirs.at(cispo), "cispo_eps_clip_low: 1e9"),
        Case("tis_token", partial(policy, correction=tis), at_tis),
        Case("tis_sequence", partial(policy, correction=sequence), at_tis),
        Case("icepop", partial(policy, correction=icepop), at_mask, "token_mask_is_threshold_*, tis_ratio_type: token"),
    ]


def _kl_cases(theirs: _SkyRL) -> list[Case]:
    at = theirs.files.where(_WORKER, "kl_loss = masked_mean(kl_loss")
    k2, k3 = (partial(theirs.kl_gradient, name=name) for name in ("k2", "k3"))
    return [
        *estimate_kl(theirs.kl, theirs.at("compute_approx_kl")),
        differentiate_k3(k3, at, "kl_estimator_type: k3 (default)", mean="responses"),
        differentiate_k2(k2, at, "kl_estimator_type: k2", mean="responses"),
    ]


def _other_cases(theirs: _SkyRL) -> list[Case]:
    return [
        Case(
            "entropy",
            theirs.entropy,
            theirs.files.where(_WORKER, "entropy = masked_mean(entropy_BS, loss_mask)"),
            kind="convention",
            because="a mean over tokens in each micro-batch, then over responses",
            instead=_entropy_by_micro_batch,
        ),
        Case(
            "value_loss",
            theirs.values,
            theirs.at("ppo_critic_loss"),
            kind="convention",
            because="a mean over responses of means over tokens",
            instead=partial(paper.value_loss, mean="responses"),
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
    total, gradients = torch.zeros((), dtype=torch.float64), []
    for part in given.micro_batches():
        answer, share = paper.entropy(part), part.num_rows / given.num_rows
        total = total + share * answer.known_value
        gradients.append(share * answer.known_gradient)
    return Answer(total, torch.cat(gradients))


class _Rows(dict[Any, Any]):
    """Columns by name, and slices of rows, where their trainer has a container."""

    def __getitem__(self, key: Any) -> Any:
        return _Rows({name: x[key] for name, x in self.items()}) if isinstance(key, slice) else super().__getitem__(key)
