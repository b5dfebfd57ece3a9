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
from benchmarks.formulas.rollouts import GROUP, MAX_TOKENS, Answer, Rollouts, of_loss

_CORE, _HELPER = "verl.trainer.ppo.core_algos", "verl.trainer.ppo.rollout_corr_helper"
_TRAINER = "verl.trainer.ppo.ray_trainer"
_REAL = {
    _CORE: "verl/trainer/ppo/core_algos.py",
    _HELPER: "verl/trainer/ppo/rollout_corr_helper.py",
    _TRAINER: "verl/trainer/ppo/ray_trainer.py",
    "verl.utils.torch_functional": "verl/utils/torch_functional.py",
    "verl.utils.import_utils": "verl/utils/import_utils.py",
}
_ABSENT = ("verl", "ray", "tensordict", "omegaconf", "flash_attn", "torch_npu", "tqdm", "transformers", "torchdata")
_BESSEL = {"kind": "convention", "because": "variance with n − 1"}


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    return _advantages(files) + _losses(files)


def _index() -> Any:
    return np.repeat(np.arange(4), GROUP)


def _advantages(files: Files) -> list[Case]:
    core, trainer = files.load(_CORE), files.load(_TRAINER)

    def gae(given: Rollouts, which: int) -> Answer:
        grids = [given.padded(x) for x in (given.rewards(), given.old_value, given.mask.float())]
        return Answer(given.flat(core.compute_gae_advantage_return(*grids, paper.GAMMA, paper.LAM)[which]))

    def outcome(given: Rollouts, function: Any, **options: Any) -> Answer:
        reward_BT, mask_BT = given.padded(given.rewards()), given.padded(given.mask.float())
        return Answer(given.flat(function(reward_BT, mask_BT, index=_index(), **options)[0]))

    def reward_with_kl(given: Rollouts, kl_penalty: str = "kl") -> Tensor:
        grids = {
            "response_mask": given.mask.float(),
            "token_level_scores": given.rewards(),
            "old_log_probs": given.old_logprob,
            "ref_log_prob": given.ref_logprob,
        }
        data: Any = SimpleNamespace(batch=_Grids({name: given.padded(x) for name, x in grids.items()}))
        control = SimpleNamespace(value=paper.BETA, update=lambda current_kl, n_steps: None)
        trainer.apply_kl_penalty(data, control, kl_penalty=kl_penalty)
        return data.batch["token_level_rewards"]

    def plus_plus(given: Rollouts) -> Answer:
        grids = reward_with_kl(given), given.padded(given.mask.float())
        config = SimpleNamespace(gamma=1.0)
        return Answer(given.flat(core.compute_reinforce_plus_plus_outcome_advantage(*grids, config=config)[0]))

    grpo, at = core.compute_grpo_outcome_advantage, partial(files.at, _CORE)
    at_gae, at_grpo = at("compute_gae_advantage_return"), at("compute_grpo_outcome_advantage")
    baseline, at_kl = core.compute_reinforce_plus_plus_baseline_outcome_advantage, files.at(_TRAINER, "apply_kl_penalty")
    return [
        Case("gae_returns", partial(gae, which=1), at_gae),
        Case("gae_whitened", partial(gae, which=0), at_gae, instead=partial(paper.gae_whitened, bessel=1), **_BESSEL),
        Case("grpo", partial(outcome, function=grpo), at_grpo),
        Case("dr_grpo", partial(outcome, function=grpo, norm_adv_by_std_in_grpo=False), at_grpo),
        Case(
            "rloo",
            partial(outcome, function=core.compute_rloo_outcome_advantage),
            at("compute_rloo_outcome_advantage"),
        ),
        Case(
            "reinforce_pp",
            plus_plus,
            at("compute_reinforce_plus_plus_outcome_advantage"),
            instead=partial(paper.reinforce_plus_plus, bessel=1),
            **_BESSEL,
        ),
        Case(
            "reinforce_pp_baseline",
            partial(outcome, function=baseline),
            at("compute_reinforce_plus_plus_baseline_outcome_advantage"),
            instead=partial(paper.reinforce_plus_plus, baseline=True, kl="none", bessel=1),
            **_BESSEL,
        ),
        Case("kl_reward", lambda given: Answer(given.flat(reward_with_kl(given))), at_kl, "kl_penalty: kl (default)"),
    ]


def _losses(files: Files) -> list[Case]:
    core, helper = files.load(_CORE), files.load(_HELPER)

    class Config(core.ActorConfig):
        """Their configuration: options by attribute and by `get`."""

        def __init__(self, **options: Any) -> None:
            self.__dict__.update(options)

        def get(self, name: str, default: Any) -> Any:
            return self.__dict__.get(name, default)

    def counts(given: Rollouts) -> dict[str, Any]:
        return {
            "dp_size": 1,
            "batch_num_tokens": given.num_tokens,
            "global_batch_size": given.num_rows,
            "loss_scale_factor": MAX_TOKENS,
        }

    def policy(
        given: Rollouts, function: Any = core.compute_policy_loss_vanilla, mode: str = "token-mean", **options: Any
    ) -> Answer:
        chosen = {"clip_ratio": paper.CLIP, "clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio_c": 1e9}
        weigh, per_response = options.pop("weigh", None), options.pop("per_response", False)
        config = Config(**chosen | options, global_batch_info=counts(given))

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            columns = part.old_logprob, part.logprob, advantage_N, part.mask.float()
            grids = [part.padded(x) for x in columns]
            weights = None if weigh is None else weigh(part)
            return function(*grids, loss_agg_mode=mode, config=config, rollout_is_weights=weights)[0]

        return of_loss(given, share)

    def weights(part: Rollouts, **options: Any) -> Tensor:
        delta_BT = part.padded(part.old_logprob - part.sampler_logprob)
        return helper.compute_rollout_correction_weights(delta_BT, part.padded(part.mask.float()), **options)[0]

    def kl(given: Rollouts, kind: str, value: bool = True) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_BT = core.kl_penalty(part.padded(part.logprob), part.padded(part.ref_logprob), kind)
            return core.agg_loss(kl_BT, part.padded(part.mask.float()), "token-mean", **counts(given))

        answer = of_loss(given, share)
        return answer if value else Answer(None, answer.gradient)

    def values(given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            columns = part.value, part.returns, part.old_value, part.mask.float()
            grids = [part.padded(x) for x in columns]
            return core.compute_value_loss(*grids, cliprange_value=paper.VALUE_CLIP, **counts(given))[0]

        return of_loss(given, share, by="value")

    def entropy(given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            entropy_BT = core.verl_F.entropy_from_logits(part.padded(part.logits))
            return core.agg_loss(entropy_BT, part.padded(part.mask.float()), "token-mean", **counts(given))

        return of_loss(given, share, by="logits")

    at = partial(files.at, _CORE)
    vanilla, at_weights = at("compute_policy_loss_vanilla"), files.at(_HELPER, "compute_rollout_correction_weights")
    token = partial(weights, rollout_is="token", rollout_is_threshold=paper.TIS_HIGH)
    sequence = partial(weights, rollout_is="sequence", rollout_is_threshold=paper.TIS_HIGH)
    icepop = partial(weights, rollout_is="token", rollout_is_threshold=f"{paper.ICEPOP[0]}_{paper.ICEPOP[1]}")
    gspo = {"per_response": True, "clip_ratio": paper.GSPO_CLIP}
    return [
        Case("ppo_tokens", policy, vanilla, "token-mean"),
        Case("ppo_responses", partial(policy, mode="seq-mean-token-mean"), vanilla, "seq-mean-token-mean"),
        Case("dr_grpo_mean", partial(policy, mode="seq-mean-token-sum-norm"), vanilla, "seq-mean-token-sum-norm"),
        Case("clip_higher", partial(policy, clip_ratio_high=paper.CLIP_HIGH), vanilla),
        Case("dual_clip", partial(policy, clip_ratio_c=paper.DUAL_CLIP), vanilla, "clip_ratio_c (always on, 3 by default)"),
        Case("gspo", partial(policy, function=core.compute_policy_loss_gspo, **gspo), at("compute_policy_loss_gspo")),
        Case(
            "cispo",
            partial(policy, function=core.compute_policy_loss_cispo),
            at("compute_policy_loss_cispo"),
            kind="convention",
            because="a lower bound too",
            instead=partial(paper.cispo, low=paper.CLIP),
        ),
        Case("cispo", partial(policy, function=core.compute_policy_loss_cispo, clip_ratio_low=1e9), at("compute_policy_loss_cispo"), "clip_ratio_low: 1e9"),
        Case("tis_token", partial(policy, weigh=token), at_weights),
        Case("tis_sequence", partial(policy, weigh=sequence), at_weights),
        Case("icepop", partial(policy, weigh=icepop), at_weights),
        Case("k1", partial(kl, kind="k1"), at("kl_penalty_forward")),
        Case("k2", partial(kl, kind="k2"), at("kl_penalty_forward")),
        Case(
            "k3",
            partial(kl, kind="k3"),
            at("kl_penalty_forward"),
            kind="convention",
            because="at most 10, no gradient above",
            instead=partial(paper.kl_estimate, name="k3", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(kl, kind="low_var_kl", value=False),
            at("kl_penalty"),
            "kl_loss_type: low_var_kl (default)",
            kind="substance",
            because="k3 differentiated: the gradient of KL(π_ref ‖ π), 0 above 10",
            instead=partial(paper.kl_gradient, factor="one", slope="k3", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(kl, kind="k3+", value=False),
            at("kl_penalty"),
            "kl_loss_type: k3+",
            kind="convention",
            because="without π/π_old: as if π had sampled",
            instead=partial(paper.kl_gradient, factor="one"),
        ),
        Case("entropy", entropy, files.at("verl.utils.torch_functional", "entropy_from_logits")),
        Case("value_loss", values, at("compute_value_loss")),
    ]


class _Grids(dict[str, Tensor]):
    """Columns by name, with the number of rows where their container has it."""

    @property
    def batch_size(self) -> torch.Size:
        return self["response_mask"].shape
