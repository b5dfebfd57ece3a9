"""How logits are divided, and in how many pieces they are gone through, changes neither values nor
gradients.

Every example is compared with float64, so that what is equal to it is equal among itself.
Tolerances are those of fp32 (`sharded.VALUE`, `sharded.GRADIENT`), times the size of the logits
where that grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dense
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ranks import Ranks
from sharded import GRADIENT, VALUE, Cut, Place, close, dense_of, random, random_tokens, run
from torch import Tensor

from lockstep_logprobs import model_utils as facade

EXAMPLES = settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""Examples are small to begin with, and are not made smaller: each that fails may cost the ranks
their lives.
"""


@dataclass(frozen=True)
class Example:
    """Logits and how they are divided."""

    cut: Cut
    chunk: int | None
    logits: Tensor
    target: Tensor
    scale: float

    def value(self) -> dict[str, float]:
        return {"atol": self.scale * VALUE["atol"], "rtol": VALUE["rtol"]}

    def gradient(self) -> dict[str, float]:
        """exp turns an absolute error of a logit into a relative one of a probability."""
        factor = self.scale * self.cut.cp
        return {"atol": factor * GRADIENT["atol"], "rtol": self.scale * GRADIENT["rtol"]}


def bounds(draw: Any, vocabulary: int, tp: int) -> tuple[int, ...]:
    inner = draw(st.lists(st.integers(0, vocabulary), min_size=tp - 1, max_size=tp - 1))
    return (0, *sorted(inner), vocabulary)


LAYOUTS = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4))


@st.composite
def examples(draw: Any) -> Example:
    """Any layout of at most four ranks, some without a column; some logits excluded, some targets
    outside.
    """
    tp, cp = draw(st.sampled_from(LAYOUTS))
    vocabulary, batch, seed = (
        draw(st.integers(2, 40)),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2**16)),
    )
    length = 2 * cp * draw(st.integers(1, 4))
    spread, offset = (
        draw(st.sampled_from([0.0, 1.0, 4.0])),
        draw(st.sampled_from([0.0, -60.0, 200.0])),
    )
    logits = random(batch, length, vocabulary, seed=seed, scale=spread) + offset
    excluded = random(batch, length, vocabulary, seed=seed + 1) > draw(st.sampled_from([1.0, 99.0]))
    excluded.scatter_(-1, random_tokens(batch, length, 1, vocabulary=vocabulary, seed=seed), False)
    return Example(
        cut=Cut(bounds(draw, vocabulary, tp), cp, draw(st.integers(0, 2))),
        chunk=draw(st.none() | st.integers(1, 9)),
        logits=logits.masked_fill(excluded, -torch.inf),
        target=random_tokens(batch, length, vocabulary=vocabulary + 2, seed=seed + 2) - 1,
        scale=max(1.0, abs(offset) / 16, spread),
    )


def logprob(logits: Tensor, place: Place, target: Tensor, chunk: int | None) -> Tensor:
    group = place.layout.cp_group_or_none
    return facade.from_parallel_logits_to_logprobs(
        logits, target, *place.bounds_and_group, False, group, chunk
    )


def dense_logprob(logits: Tensor, target: Tensor) -> Tensor:
    return dense.logprobs(logits, dense.shift(target))[:, :-1]


@EXAMPLES
@given(example=examples())
def test_logprobs_match_float64_for_any_vocab_shards_chunks_and_padding(
    ranks: Ranks, example: Example
) -> None:
    """On shards as in float64; what reaches a logit of -inf moves nothing, but it is a number."""
    logits, target = example.logits, example.target
    upstream = [random(*target[:, 1:].shape, seed=5, scale=1.0)]
    together = run(ranks, logprob, example.cut, logits, target, example.chunk, upstream=upstream)
    (value,), gradient = dense_of(dense_logprob, logits, target, upstream=upstream)
    close(together.result, value, **example.value())
    finite = logits.isfinite()
    close(together.gradient[finite], example.cut.cp * gradient[finite], **example.gradient())
    assert together.gradient.isfinite().all()
