"""OpenRLHF: its losses, and the advantages of its experience maker.

The counts are those of all micro-batches, as its actor passes them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.loading import Files, bind
from benchmarks.formulas.rollouts import GROUP, Answer, Rollouts, of_loss

_LOSS, _TOOLS = "openrlhf.models.loss", "openrlhf.models.utils"
_MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
_REAL = {
    _LOSS: "openrlhf/models/loss.py",
    _TOOLS: "openrlhf/models/utils.py",
    _MAKER: "openrlhf/trainer/ppo_utils/experience_maker.py",
    "openrlhf.trainer.ppo_utils.length_penalty": "openrlhf/trainer/ppo_utils/length_penalty.py",
}
_ABSENT = ("openrlhf", "ray", "deepspeed", "flash_attn", "vllm")


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    return _advantages(files) + _losses(files) + _divergences(files)


def _advantages(files: Files) -> list[Case]:
    module, tools = files.load(_MAKER), files.load(_TOOLS)

    def experience(given: Rollouts, estimator: str, kl: bool, normalize: bool) -> Any:
        advantage = SimpleNamespace(
            estimator=estimator, gamma=paper.GAMMA if estimator == "gae" else 1.0, lambd=paper.LAM, no_std_norm=False
        )
        args = SimpleNamespace(
            algo=SimpleNamespace(advantage=advantage),
            rollout=SimpleNamespace(n_samples_per_prompt=GROUP),
            reward=SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None),
        )
        maker = bind(
            module.RemoteExperienceMaker,
            strategy=SimpleNamespace(args=args),
            kl_ctl=SimpleNamespace(value=paper.BETA if kl else 0.0),
            advantage_estimator=estimator,
        )
        grids = [given.padded(x) for x in (given.old_logprob, given.ref_logprob, given.old_value, given.mask.float())]
        made = SimpleNamespace(
            index=list(range(given.num_rows)),
            rewards=given.score.clone(),
            kl=tools.compute_approx_kl(*grids[:2], kl_estimator="k1"),
            values=grids[2],
            action_mask=grids[3],
            info={},
        )
        maker.compute_advantages_and_returns([made])
        return made

    def advantages(given: Rollouts, estimator: str, kl: bool = False) -> Answer:
        return Answer(given.flat(experience(given, estimator, kl, True).advantages))

    def returns(given: Rollouts) -> Answer:
        return Answer(given.flat(experience(given, "gae", False, True).returns))

    def rewards(given: Rollouts) -> Answer:
        grids = [given.padded(x) for x in (given.old_logprob, given.ref_logprob, given.mask.float())]
        kl_BT = tools.compute_approx_kl(*grids[:2], kl_estimator="k1")
        return Answer(given.flat(tools.compute_reward(given.score, paper.BETA, kl_BT, action_mask=grids[2])))

    at_gae = files.at(_MAKER, "RemoteExperienceMaker.get_advantages_and_returns")
    at = files.at(_MAKER, "RemoteExperienceMaker.compute_advantages_and_returns")
    through = {"kind": "substance", "because": "a tool's tokens are steps, with V = 0"}
    return [
        Case("gae_returns", returns, at_gae, instead=partial(paper.gae_returns, skip=False), **through),
        Case(
            "gae_whitened",
            partial(advantages, estimator="gae"),
            at,
            instead=partial(paper.gae_whitened, skip=False),
            **through,
        ),
        Case("grpo", partial(advantages, estimator="group_norm"), at, "estimator: group_norm"),
        Case("dr_grpo", partial(advantages, estimator="dr_grpo"), at, "estimator: dr_grpo"),
        Case("rloo", partial(advantages, estimator="rloo"), at, "estimator: rloo"),
        Case("reinforce_pp", partial(advantages, estimator="reinforce", kl=True), at, "estimator: reinforce"),
        Case(
            "reinforce_pp_baseline",
            partial(advantages, estimator="reinforce_baseline"),
            at,
            "estimator: reinforce_baseline",
        ),
        Case("kl_reward", rewards, files.at(_TOOLS, "compute_reward"), "kl.estimator: k1 (default)"),
    ]


def _losses(files: Files) -> list[Case]:
    module, tools = files.load(_LOSS), files.load(_TOOLS)

    def counts(given: Rollouts) -> dict[str, int]:
        return {"dp_size": 1, "batch_num_tokens": given.num_tokens, "global_batch_size": given.num_rows}

    def policy(given: Rollouts, per_response: bool = False, **options: Any) -> Answer:
        chosen = {"clip_eps_low": paper.CLIP, "clip_eps_high": paper.CLIP}
        loss = module.PolicyLoss(**chosen | options)

        def share(part: Rollouts) -> Tensor:
            advantage_N = part.response_advantage[part.row] if per_response else part.advantage
            columns = part.logprob, part.old_logprob, advantage_N, part.mask.float(), part.sampler_logprob
            return loss(*(part.padded(x) for x in columns), **counts(given))[0]

        return of_loss(given, share)

    def values(given: Rollouts) -> Answer:
        loss = module.ValueLoss(paper.VALUE_CLIP)

        def share(part: Rollouts) -> Tensor:
            columns = part.value, part.old_value, part.returns, part.mask.float()
            return loss(*(part.padded(x) for x in columns), **counts(given))

        return of_loss(given, share, by="value")

    def entropy(given: Rollouts) -> Answer:
        def share(part: Rollouts) -> Tensor:
            entropy_BT = tools.compute_entropy(part.padded(part.logits))
            return module.aggregate_loss(entropy_BT, part.padded(part.mask.float()), **counts(given))

        return of_loss(given, share, by="logits")

    def preference(given: Rollouts, ipo: bool) -> Answer:
        loss = module.DPOLoss(paper.DPO_BETA, ipo=ipo)

        def share(part: Rollouts) -> Tensor:
            mask_BT = part.padded(part.mask.float())
            sums = [(part.padded(x) * mask_BT).sum(-1) for x in (part.logprob, part.ref_logprob)]
            return loss(*(x[first::2] for x in sums for first in (0, 1)))[0] * part.num_rows / given.num_rows

        return of_loss(given, share)

    at, at_dpo = files.at(_LOSS, "PolicyLoss.forward"), files.at(_LOSS, "DPOLoss.forward")
    tis = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.0, paper.TIS_HIGH]}
    icepop = {"vllm_is_truncated_threshold": list(paper.ICEPOP), "vllm_is_correction_type": "icepop"}
    gspo = {"policy_loss_type": "gspo", "clip_eps_low": paper.GSPO_CLIP, "clip_eps_high": paper.GSPO_CLIP}
    return [
        Case("ppo_tokens", policy, at),
        Case("ppo_responses", partial(policy, token_level_loss=False), at, "token_level_loss: False"),
        Case("clip_higher", partial(policy, clip_eps_high=paper.CLIP_HIGH), at),
        Case("dual_clip", partial(policy, dual_clip=paper.DUAL_CLIP), at),
        Case("gspo", partial(policy, per_response=True, **gspo), at),
        Case("tis_token", partial(policy, **tis), at, "vllm_is_truncated_threshold: [0, 2]"),
        Case("icepop", partial(policy, **tis | icepop), at),
        Case("entropy", entropy, files.at(_TOOLS, "compute_entropy")),
        Case("value_loss", values, files.at(_LOSS, "ValueLoss.forward")),
        Case("dpo", partial(preference, ipo=False), at_dpo),
        Case("ipo", partial(preference, ipo=True), at_dpo),
    ]


def _divergences(files: Files) -> list[Case]:
    module, tools = files.load(_LOSS), files.load(_TOOLS)
    at, in_actor = files.at(_TOOLS, "compute_approx_kl"), files.where("openrlhf/trainer/ray/ppo_actor.py", "kl_loss = aggregate_loss")

    def kl(given: Rollouts, name: str) -> Answer:
        def share(part: Rollouts) -> Tensor:
            kl_BT = tools.compute_approx_kl(part.padded(part.logprob), part.padded(part.ref_logprob), name)
            mask_BT = part.padded(part.mask.float())
            return module.aggregate_loss(kl_BT, mask_BT, batch_num_tokens=given.num_tokens)

        return of_loss(given, share)

    def gradient(given: Rollouts, name: str) -> Answer:
        return Answer(None, kl(given, name).gradient)

    bounded = partial(paper.kl_estimate, name="k3", bound=10.0)
    return [
        Case("k1", partial(kl, name="k1"), at),
        Case("k2", partial(kl, name="k2"), at),
        Case("k3", partial(kl, name="k3"), at, "", "convention", "at most 10, no gradient above", bounded),
        Case(
            "kl_loss",
            partial(gradient, name="k1"),
            in_actor,
            "kl.estimator: k1 (default; it prints a warning)",
            kind="substance",
            because="k1 differentiated: an expected gradient of 0",
            instead=partial(paper.kl_gradient, factor="one", slope="k1"),
        ),
        Case(
            "kl_loss",
            partial(gradient, name="k3"),
            in_actor,
            "kl.estimator: k3",
            kind="substance",
            because="k3 differentiated: the gradient of KL(π_ref ‖ π), 0 above 10",
            instead=partial(paper.kl_gradient, factor="one", slope="k3", bound=10.0),
        ),
        Case(
            "kl_loss",
            partial(gradient, name="k2"),
            in_actor,
            "kl.estimator: k2",
            kind="convention",
            because="without π/π_old: as if π had sampled",
            instead=partial(paper.kl_gradient, factor="one"),
        ),
    ]
