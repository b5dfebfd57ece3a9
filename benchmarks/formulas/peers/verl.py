"""verl: advantages, losses and corrections of its trainer for PPO.

`global_batch_info` and the counts are what its trainer passes with each micro-batch.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files
from benchmarks.formulas.recurring import (
    bound_below,
    differentiate_k2,
    differentiate_k3,
    estimate_kl,
    whiten_by_bessel,
)
from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts, of_loss

_CORE = "verl.trainer.ppo.core_algos"
_HELPER = "verl.trainer.ppo.rollout_corr_helper"
_TRAINER = "verl.trainer.ppo.ray_trainer"
_FUNCTIONAL = "verl.utils.torch_functional"
_REAL = {
    _CORE: "verl/trainer/ppo/core_algos.py",
    _HELPER: "verl/trainer/ppo/rollout_corr_helper.py",
    _TRAINER: "verl/trainer/ppo/ray_trainer.py",
    _FUNCTIONAL: "verl/utils/torch_functional.py",
    "verl.utils.import_utils": "verl/utils/import_utils.py",
}
_ABSENT = (
    "verl",
    "ray",
    "tensordict",
    "omegaconf",
    "flash_attn",
    "torch_npu",
    "tqdm",
    "transformers",
    "torchdata",
)
# Formulas that it lacks:
#   "gae_cut_off": "a response that was cut off counts as ended"
#   **dict.fromkeys(("dpo", "ipo"), "no training on preferences")


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    theirs = _Verl(files)
    return (
        _advantage_cases(theirs) + _policy_cases(theirs) + _kl_cases(theirs) + _other_cases(theirs)
    )


class _Verl:
    """Calls of its functions."""

    def __init__(self, files: Files) -> None:
        self.core, self.helper, self.trainer = (
            files.load(_CORE),
            files.load(_HELPER),
            files.load(_TRAINER),
        )
        self.at = partial(files.at, _CORE)
        self.files = files

    def gae(self, given: Rollouts, which: int) -> Answer:
        grids = [given.padded(x) for x in (given.rewards(), given.old_value, given.mask.float())]
        return Answer(
            given.flat(
                self.core.compute_gae_advantage_return(*grids, paper.GAMMA, paper.LAM)[which]
            )
        )

    def outcome(self, given: Rollouts, name: str, **options: Any) -> Answer:
        grids = given.padded(given.rewards()), given.padded(given.mask.float())
        index = np.repeat(np.arange(given.num_rows // GROUP), GROUP)
        return Answer(given.flat(getattr(self.core, name)(*grids, index=index, **options)[0]))

    def rewards(self, given: Rollouts) -> Tensor:
        columns = {
            "response_mask": given.mask.float(),
            "token_level_scores": given.rewards(),
            "old_log_probs": given.old_logprob,
            "ref_log_prob": given.ref_logprob,
        }
        grids = _Grids({name: given.padded(x) for name, x in columns.items()})
        data: Any = SimpleNamespace(batch=grids)
        control = SimpleNamespace(value=paper.BETA, update=lambda current_kl, n_steps: None)
        self.trainer.apply_kl_penalty(data, control, kl_penalty="kl")
        return grids["token_level_rewards"]

    def plus_plus(self, given: Rollouts) -> Answer:
        grids = (self.rewards(given), given.padded(given.mask.float()))
        config = SimpleNamespace(gamma=1.0)
        return Answer(
            given.flat(
                self.core.compute_reinforce_plus_plus_outcome_advantage(*grids, config=config)[0]
            )
        )

    def counts(self, given: Rollouts) -> dict[str, Any]:
        return {
            "dp_size": 1,
            "batch_num_tokens": given.num_tokens,
            "global_batch_size": given.num_rows,
            "loss_scale_factor": MAX_TOKENS,
        }

    def policy(
        self,
        given: Rollouts,
        name: str = "compute_policy_loss_vanilla",
        mode: str = "token-mean",
        per_response: bool = False,
        weigh: dict[str, Any] | None = None,
        **options: Any,
    ) -> Answer:
        chosen = {
            "clip_ratio": paper.CLIP,
            "clip_ratio_low": None,
            "clip_ratio_high": None,
            "clip_ratio_c": 1e9,
        }
        config = _with_get(
            self.core.ActorConfig, chosen | options | {"global_batch_info": self.counts(given)}
        )

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            grids = [
                part.padded(x)
                for x in (part.old_logprob, part.logprob, advantage_N, part.mask.float())
            ]
            weight_BT = None if weigh is None else self.weights(part, weigh)
            return getattr(self.core, name)(
                *grids, loss_agg_mode=mode, config=config, rollout_is_weights=weight_BT
            )[0]

        return of_loss(given, share)

    def weights(self, part: Rollouts, options: dict[str, Any]) -> Tensor:
        grids = part.padded(part.old_logprob - part.sampler_logprob), part.padded(part.mask.float())
        return self.helper.compute_rollout_correction_weights(*grids, **options)[0]

    def mean(self, part: Rollouts, x_BT: Tensor, given: Rollouts) -> Tensor:
        return self.core.agg_loss(
            x_BT, part.padded(part.mask.float()), "token-mean", **self.counts(given)
        )

    def kl(self, given: Rollouts, kind: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            grids = part.padded(part.logprob), part.padded(part.ref_logprob)
            return self.mean(part, self.core.kl_penalty(*grids, kind), given)

        return of_loss(given, share)

    def kl_gradient(self, given: Rollouts, kind: str) -> Answer:
        return Answer(None, self.kl(given, kind).gradient)

    def values(self, given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            grids = [
                part.padded(x)
                for x in (part.value, part.returns, part.old_value, part.mask.float())
            ]
            return self.core.compute_value_loss(
                *grids, cliprange_value=paper.VALUE_CLIP, **self.counts(given)
            )[0]

        return of_loss(given, share, by="value")

    def entropy(self, given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            return self.mean(
                part, self.core.verl_F.entropy_from_logits(part.padded(part.logits)), given
            )

        return of_loss(given, share, by="logits")


def _advantage_cases(theirs: _Verl) -> list[Case]:
    grpo = "compute_grpo_outcome_advantage"
    rloo = "compute_rloo_outcome_advantage"
    plus = "compute_reinforce_plus_plus_outcome_advantage"
    baseline = "compute_reinforce_plus_plus_baseline_outcome_advantage"
    at_gae = theirs.at("compute_gae_advantage_return")
    whitened = partial(paper.gae_whitened, bessel=1)
    with_kl = partial(paper.reinforce_plus_plus, bessel=1)
    return [
        Case("gae_returns", partial(theirs.gae, which=1), at_gae),
        whiten_by_bessel("gae_whitened", partial(theirs.gae, which=0), at_gae, whitened),
        Case("grpo", partial(theirs.outcome, name=grpo), theirs.at(grpo)),
        Case(
            "dr_grpo",
            partial(theirs.outcome, name=grpo, norm_adv_by_std_in_grpo=False),
            theirs.at(grpo),
        ),
        Case("rloo", partial(theirs.outcome, name=rloo), theirs.at(rloo)),
        whiten_by_bessel("reinforce_pp", theirs.plus_plus, theirs.at(plus), with_kl),
        whiten_by_bessel(
            "reinforce_pp_baseline",
            partial(theirs.outcome, name=baseline),
            theirs.at(baseline),
            partial(with_kl, baseline=True, kl="none"),
        ),
        Case(
            "kl_reward",
            lambda given: Answer(given.flat(theirs.rewards(given))),
            theirs.files.at(_TRAINER, "apply_kl_penalty"),
            "kl_penalty: kl (default)",
        ),
    ]


def _policy_cases(theirs: _Verl) -> list[Case]:
    vanilla = theirs.at("compute_policy_loss_vanilla")
    at_weights = theirs.files.at(_HELPER, "compute_rollout_correction_weights")
    policy, dual = theirs.policy, "clip_ratio_c; always on, 3 by default"
    token = {"rollout_is": "token", "rollout_is_threshold": paper.TIS_HIGH}
    sequence = {"rollout_is": "sequence", "rollout_is_threshold": paper.TIS_HIGH}
    icepop = {"rollout_is": "token", "rollout_is_threshold": f"{paper.ICEPOP[0]}_{paper.ICEPOP[1]}"}
    cispo = partial(policy, name="compute_policy_loss_cispo")
    at_cispo = theirs.at("compute_policy_loss_cispo")
    gspo = partial(policy, name="compute_policy_loss_gspo", clip_ratio=paper.GSPO_CLIP)
    return [
        Case("ppo_tokens", policy, vanilla, "token-mean"),
        Case(
            "ppo_responses",
            partial(policy, mode="seq-mean-token-mean"),
            vanilla,
            "seq-mean-token-mean",
        ),
        Case(
            "dr_grpo_mean",
            partial(policy, mode="seq-mean-token-sum-norm"),
            vanilla,
            "seq-mean-token-sum-norm",
        ),
        Case("clip_higher", partial(policy, clip_ratio_high=paper.CLIP_HIGH), vanilla),
        Case("dual_clip", partial(policy, clip_ratio_c=paper.DUAL_CLIP), vanilla, dual),
        Case("gspo", partial(gspo, per_response=True), theirs.at("compute_policy_loss_gspo")),
        Case("gspo_token", gspo, theirs.at("compute_policy_loss_gspo")),
        bound_below(cispo, at_cispo, "clip_ratio_low: 0.2"),
        Case("cispo", partial(cispo, clip_ratio_low=1e9), at_cispo, "clip_ratio_low: 1e9"),
        Case("tis_token", partial(policy, weigh=token), at_weights),
        Case("tis_sequence", partial(policy, weigh=sequence), at_weights),
        Case("icepop", partial(policy, weigh=icepop), at_weights),
    ]


def _kl_cases(theirs: _Verl) -> list[Case]:
    at = theirs.at("kl_penalty")
    gradient = theirs.kl_gradient
    return [
        *estimate_kl(theirs.kl, theirs.at("kl_penalty_forward")),
        differentiate_k3(
            partial(gradient, kind="low_var_kl"), at, "kl_loss_type: low_var_kl (default)"
        ),
        differentiate_k2(partial(gradient, kind="k3+"), at, "kl_loss_type: k3+"),
    ]


def _other_cases(theirs: _Verl) -> list[Case]:
    return [
        Case("entropy", theirs.entropy, theirs.files.at(_FUNCTIONAL, "entropy_from_logits")),
        Case("value_loss", theirs.values, theirs.at("compute_value_loss")),
    ]


def _with_get(base: type, options: dict[str, Any]) -> Any:
    """Their configuration of an actor: options by attribute, and by `get` with a default."""
    made = type(
        "Config", (base,), {"get": lambda self, name, default=None: options.get(name, default)}
    )()
    made.__dict__.update(options)
    return made


class _Grids(dict[str, Tensor]):
    """Columns by name, with the number of rows where their container has it."""

    @property
    def batch_size(self) -> torch.Size:
        return self["response_mask"].shape
