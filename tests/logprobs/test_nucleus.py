"""The threshold of top-p where one process has all columns, against the passes that ranks make; and
sums of tiles.
"""

from __future__ import annotations

import math

import pytest
import torch
from ranks import Layout, Ranks
from torch import Tensor

from lockstep_logprobs.shard import Shard
from lockstep_logprobs.support import support_floor

MISSING = 11
"""The row with a number that is missing."""

ROUND = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make(columns: int) -> Tensor:
    """Rows from flat to one token, with equal, masked, infinite and missing numbers."""
    logits = torch.randn(14, columns, generator=torch.Generator().manual_seed(columns))
    logits *= torch.tensor([0.01, 0.3, 1, 2, 3, 5, 10, 40, 3, 3, 3, 3, 3, 0])[:, None]
    logits[8] = logits[8].round()
    logits[9, ::2] = -math.inf
    logits[10, :] = -math.inf
    logits[MISSING, 7] = math.nan
    logits[12, 7] = math.inf
    return logits


def of_shard(
    layout: Layout, logits: Tensor, cut: int, cases: list[tuple[float, float]]
) -> list[Tensor]:
    own, start = (logits[:, cut:], cut) if layout.rank else (logits[:, :cut], 0)
    shard = Shard(start, layout.tp_group)
    return [support_floor(own, shard, top_p=p, temperature=temperature) for p, temperature in cases]


@pytest.mark.parametrize("dtype", ROUND)
@pytest.mark.parametrize("columns", [129, 5003, 20_000])
def test_one_process_top_p_threshold_is_bit_identical_to_sharded(
    ranks: Ranks, dtype: str, columns: int
) -> None:
    logits = make(columns).to(ROUND[dtype])
    logits[MISSING] = 0.0  # a maximum over ranks may be without what is no number
    cases = [(p, t) for p in (0.0, 1e-13, 1e-3, 0.5, 0.9, 0.999, 1 - 1e-9) for t in (0.1, 0.7, 2.0)]
    found = [support_floor(logits, top_p=p, temperature=t) for p, t in cases]
    for expected in ranks.run(of_shard, logits, columns // 3, cases, tp=2):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-6])
def test_top_p_threshold_is_exact_when_probability_nearly_equals_p(gap: float) -> None:
    """The first token has the probability σ(1) but for what many unlikely ones take."""
    logits = torch.full((1, 40_000), -12.0)
    logits[0, 100], logits[0, 200] = 1.0, 0.0
    first = float(logits.double().softmax(-1)[0, 100])
    assert support_floor(logits, top_p=first - gap).item() == 1.0
    assert support_floor(logits, top_p=first + gap).item() == 0.0
