"""prime-rl: its advantages, and its losses, which compare the policy with the sampler and do not clip.

Its default loss drops tokens whose probability has moved too far (DPPO) and adds a squared log-ratio; none of the
formulas here has either. What it shares with them shows where these are switched off.
"""

from __future__ import annotations

import asyncio
import math
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

_LOSS, _GRPO = "prime_rl.trainer.rl.loss", "prime_rl.orchestrator.algo.grpo"
_REAL = {
    _LOSS: "src/prime_rl/trainer/rl/loss.py",
    _GRPO: "src/prime_rl/orchestrator/algo/grpo.py",
    "prime_rl.orchestrator.algo.base": "src/prime_rl/orchestrator/algo/base.py",
    "prime_rl.orchestrator.algo.routing": "src/prime_rl/orchestrator/algo/routing.py",
}
_ABSENT = ("prime_rl", "verifiers", "beartype", "jaxtyping", "renderers")
_NO_CRITIC, _NO_CLIP = "no critic", "its losses do not clip (DPPO, IPO-style masks)"
LACKS = {
    **dict.fromkeys(("gae_returns", "gae_cut_off", "gae_whitened", "value_loss"), _NO_CRITIC),
    **dict.fromkeys(("ppo_responses", "dr_grpo_mean", "clip_higher", "dual_clip", "gspo", "gspo_token"), _NO_CLIP),
    **dict.fromkeys(("cispo", "tis_token", "tis_sequence", "icepop"), "the ratio is to the sampler to begin with"),
    **dict.fromkeys(("rloo", "reinforce_pp", "reinforce_pp_baseline"), "not there"),
    **dict.fromkeys(("kl_reward", "k1", "k2", "k3"), "no reference in RL; the squared log-ratio is to the sampler"),
    "entropy": "a metric without gradient",
    **dict.fromkeys(("dpo", "ipo"), "no training on preferences"),
}


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    theirs, at = _PrimeRL(files), files.at(_LOSS, "default_loss_fn")
    at_group = files.at(_GRPO, "GRPOAlgorithm.score_group")
    return [
        Case(
            "grpo",
            theirs.advantages,
            at_group,
            kind="substance",
            because="not divided by the deviation: it is Dr. GRPO's",
            instead=paper.group,
        ),
        Case("dr_grpo", theirs.advantages, at_group),
        Case(
            "ppo_tokens",
            theirs.policy,
            at,
            "dppo_mask_*: inf, kl_tau: 0",
            kind="substance",
            because="no clip, and the ratio is to the sampler, not to π_old",
            instead=partial(paper.policy_loss, low=math.inf, high=math.inf, behavior="sampler"),
        ),
        Case(
            "kl_loss",
            theirs.kl_gradient,
            at,
            "adv_tau: 0, kl_tau: 1",
            kind="substance",
            because="the squared log-ratio to the sampler, not to a reference",
            instead=partial(paper.kl_gradient, factor="one", scale=2.0, to="sampler"),
        ),
    ]


class _PrimeRL:
    """Calls of its functions."""

    def __init__(self, files: Files) -> None:
        self.loss, self.grpo = files.load(_LOSS), files.load(_GRPO)

    def advantages(self, given: Rollouts) -> Answer:
        algorithm = bind(self.grpo.GRPOAlgorithm, length_penalty=None)
        traces = [_trace(mask, float(score)) for mask, score in zip(given.split(given.mask), given.score, strict=True)]
        for first in range(0, given.num_rows, GROUP):
            episodes = [SimpleNamespace(traces=[trace]) for trace in traces[first : first + GROUP]]
            asyncio.run(algorithm.score_group(episodes))
        advantage_N = torch.zeros_like(given.logprob)
        advantage_N[given.mask] = torch.tensor([x for trace in traces for x in trace.nodes[0].advantages])
        return Answer(advantage_N)

    def policy(self, given: Rollouts, **options: float) -> Answer:
        chosen = {"dppo_mask_low": math.inf, "dppo_mask_high": math.inf, "adv_tau": 1.0, "kl_tau": 0.0}
        function = partial(self.loss.default_loss_fn, loss_config=SimpleNamespace(**chosen | options))
        scales = {"rl_scale": given.num_tokens, "ce_scale": 1, "ref_kl_scale": 1}

        def share(part: Rollouts) -> Tensor:
            columns = part.logprob, part.sampler_logprob, part.ref_logprob, part.advantage, part.mask
            lists = [part.split(x) for x in columns]
            return self.loss.compute_loss(*lists, None, None, None, function, **scales)[0]

        return of_loss(given, share)

    def kl_gradient(self, given: Rollouts) -> Answer:
        return Answer(None, self.policy(given, adv_tau=0.0, kl_tau=1.0).gradient)


def _trace(mask: Tensor, reward: float) -> Any:
    """A response as its algorithms read it."""
    node = SimpleNamespace(mask=mask.tolist(), token_ids=[0] * len(mask), advantages=None)
    return SimpleNamespace(
        has_error=False, agent=SimpleNamespace(trainable=True), nodes=[node], reward=reward, id="response"
    )
