"""`lockstep train` in which `correction.kind: token_tis` weighs every token 1: stale samples pass
for fresh ones.

    python -m benchmarks.ladder.uncorrected train RECIPE key=value …

An experiment of the rung `stale`, and no option of the product: it refuses to run one step ahead
without a correction.
"""

from __future__ import annotations

import sys

from torch import Tensor

from benchmarks.altered import name_runs_apart
from lockstep import cli
from lockstep.algorithms.policy_gradient import step


def ignore_mismatch(
    learner_logprob_N: Tensor, sampler_logprob_N: Tensor, mask_N: Tensor, high: float
) -> Tensor:
    """No weights at all."""
    return mask_N.float()


step.token_tis = ignore_mismatch
name_runs_apart("benchmarks.ladder.uncorrected", ("grpo", "ppo"))

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
