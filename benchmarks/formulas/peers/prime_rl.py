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


def open_files(root: Path) -> Files:
    return Files(root, _REAL, _ABSENT)


def cases(files: Files) -> list[Case]:
    loss, grpo = files.load(_LOSS), files.load(_GRPO)

    def advantages(given: Rollouts) -> Answer:
        algorithm = bind(grpo.GRPOAlgorithm, length_penalty=None)
        agent = SimpleNamespace(trainable=True)
        columns: list[Tensor] = []
        for row, mask in enumerate(given.split(given.mask)):
            node = SimpleNamespace(mask=mask.tolist(), token_ids=[0] * len(mask), advantages=None)
            reward = float(given.score[row])
            columns.append(SimpleNamespace(has_error=False, agent=agent, nodes=[node], reward=reward, id=row))  # pyright: ignore
        for first in range(0, given.num_rows, GROUP):
            traces: Any = columns[first : first + GROUP]
            asyncio.run(algorithm.score_group([SimpleNamespace(traces=[trace]) for trace in traces]))
        advantage_N = torch.zeros_like(given.logprob)
        assigned: Any = columns
        advantage_N[given.mask] = torch.tensor([x for trace in assigned for x in trace.nodes[0].advantages])
        return Answer(advantage_N)

    def policy(given: Rollouts, **options: float) -> Answer:
        chosen = {"dppo_mask_low": math.inf, "dppo_mask_high": math.inf, "adv_tau": 1.0, "kl_tau": 0.0}
        config: Any = SimpleNamespace(**chosen | options)

        def share(part: Rollouts) -> Tensor:
            columns = part.logprob, part.sampler_logprob, part.ref_logprob, part.advantage, part.mask
            lists = [part.split(x) for x in columns]
            function = partial(loss.default_loss_fn, loss_config=config)
            scales = {"rl_scale": given.num_tokens, "ce_scale": 1, "ref_kl_scale": 1}
            return loss.compute_loss(*lists, None, None, None, function, **scales)[0]

        return of_loss(given, share)

    def kl_gradient(given: Rollouts) -> Answer:
        return Answer(None, policy(given, adv_tau=0.0, kl_tau=1.0).gradient)

    at = files.at(_LOSS, "default_loss_fn")
    return [
        Case(
            "grpo",
            advantages,
            files.at(_GRPO, "GRPOAlgorithm.score_group"),
            kind="substance",
            because="not divided by the deviation: it is Dr. GRPO's",
            instead=paper.group,
        ),
        Case("dr_grpo", advantages, files.at(_GRPO, "GRPOAlgorithm.score_group")),
        Case(
            "ppo_tokens",
            policy,
            at,
            "dppo_mask_*: inf, kl_tau: 0",
            kind="substance",
            because="no clip, and the ratio is to the sampler, not to π_old",
            instead=partial(paper.policy_loss, low=math.inf, high=math.inf, behavior="sampler"),
        ),
        Case(
            "kl_loss",
            kl_gradient,
            at,
            "kl_tau, adv_tau: 0",
            kind="substance",
            because="the squared log-ratio to the sampler, not to a reference",
            instead=partial(paper.kl_gradient, factor="one", scale=2.0, to="sampler"),
        ),
    ]
