"""How logits are divided, and in how many pieces they are gone through, changes neither values nor gradients.

Every example is compared with float64, so that what is equal to it is equal among itself. Tolerances are those of fp32
(`sharded.VALUE`, `sharded.GRADIENT`), times the size of the logits where that grows.
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
from lockstep_logprobs.logits_sampling_utils import TrainingSamplingParams

EXAMPLES = settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
"""Examples are small to begin with, and are not made smaller: each that fails may cost the ranks their lives."""


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

    def check(self, ranks: Ranks, function: Any, reference: Any, argument: Tensor, upstream: list[Tensor]) -> None:
        """On shards as in float64; what reaches a logit of -inf moves nothing, but it is a number."""
        together = run(ranks, function, self.cut, self.logits, argument, self.chunk, upstream=upstream)
        values, gradient = dense_of(reference, self.logits, argument, upstream=upstream)
        for result, value in zip(together.results, values, strict=True):
            close(result, value, **self.value())
        finite = self.logits.isfinite()
        close(together.gradient[finite], self.cut.cp * gradient[finite], **self.gradient())
        assert together.gradient.isfinite().all()


def bounds(draw: Any, vocabulary: int, tp: int) -> tuple[int, ...]:
    inner = draw(st.lists(st.integers(0, vocabulary), min_size=tp - 1, max_size=tp - 1))
    return (0, *sorted(inner), vocabulary)


Layouts = tuple[tuple[int, int], ...]
WITHOUT_CP = ((1, 1), (2, 1), (3, 1), (4, 1))
LAYOUTS = (*WITHOUT_CP, (1, 2), (2, 2), (1, 4))
CHUNKS = st.none() | st.integers(1, 9)


@st.composite
def examples(draw: Any, layouts: Layouts = LAYOUTS, spreads: tuple[float, ...] = (0.0, 1.0, 4.0)) -> Example:
    """Any layout of at most four ranks, some without a column; some logits excluded, some targets outside."""
    tp, cp = draw(st.sampled_from(layouts))
    vocabulary, batch, seed = draw(st.integers(2, 40)), draw(st.integers(1, 3)), draw(st.integers(0, 2**16))
    length = 2 * cp * draw(st.integers(1, 4))
    spread, offset = draw(st.sampled_from(spreads)), draw(st.sampled_from([0.0, -60.0, 200.0]))
    logits = random(batch, length, vocabulary, seed=seed, scale=spread) + offset
    excluded = random(batch, length, vocabulary, seed=seed + 1) > draw(st.sampled_from([1.0, 99.0]))
    excluded.scatter_(-1, random_tokens(batch, length, 1, vocabulary=vocabulary, seed=seed), False)
    return Example(
        cut=Cut(bounds(draw, vocabulary, tp), cp, draw(st.integers(0, 2))),
        chunk=draw(CHUNKS),
        logits=logits.masked_fill(excluded, -torch.inf),
        target=random_tokens(batch, length, vocabulary=vocabulary + 2, seed=seed + 2) - 1,
        scale=max(1.0, abs(offset) / 16, spread),
    )


def logprob(logits: Tensor, place: Place, target: Tensor, chunk: int | None) -> Tensor:
    group = place.layout.cp_group_or_none
    return facade.from_parallel_logits_to_logprobs(logits, target, *place.bounds_and_group, False, group, chunk)


def dense_logprob(logits: Tensor, target: Tensor) -> Tensor:
    return dense.logprobs(logits, dense.shift(target))[:, :-1]


@EXAMPLES
@given(example=examples())
def test_shards_chunks_and_filling_change_nothing(ranks: Ranks, example: Example) -> None:
    upstream = random(*example.target[:, 1:].shape, seed=5, scale=1.0)
    example.check(ranks, logprob, dense_logprob, example.target, [upstream])


def columns_and_entropy(logits: Tensor, place: Place, index: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    group = place.layout.tp_group
    own = logits[..., : place.end - place.start]
    return (
        facade.ChunkedDistributedGatherLogprob.apply(own, index, place.start, place.end, chunk, group),
        facade.ChunkedDistributedEntropy.apply(own, chunk, group),
    )


def dense_columns_and_entropy(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return dense.picked_logprobs(logits, index), dense.sum_p_log_p(logits)


@EXAMPLES
@given(example=examples(WITHOUT_CP))
def test_columns_and_entropy(ranks: Ranks, example: Example) -> None:
    index = torch.stack([example.target, example.target, example.target.roll(1, 1)], -1)
    upstream = [random(*index.shape, seed=5, scale=1.0), random(*example.target.shape, seed=6, scale=1.0)]
    example.check(ranks, columns_and_entropy, dense_columns_and_entropy, index, upstream)


# Supports. -----------------------------------------------------------------------------------------------------------


def in_support(logits: Tensor, place: Place, target: Tensor, chunk: int | None, sampling: Any) -> Tensor:
    group = place.layout.cp_group_or_none
    return facade.from_parallel_logits_to_logprobs(
        logits, target, *place.bounds_and_group, False, group, chunk, sampling
    )


def dense_in_support(logits: Tensor, target: Tensor, sampling: TrainingSamplingParams) -> Tensor:
    return dense_logprob(dense.filtered(logits, sampling.top_k, sampling.top_p), target)


SAMPLING = st.builds(
    TrainingSamplingParams, top_k=st.none() | st.integers(1, 45), top_p=st.sampled_from([0.1, 0.6, 0.97, 1.0])
)


@EXAMPLES
@given(example=examples(spreads=(4.0,)), sampling=SAMPLING)
def test_supports_are_found_in_shards(ranks: Ranks, example: Example, sampling: TrainingSamplingParams) -> None:
    """Logits of a spread of 4 are no ties, and the border of the support is clear but for a chance of about 1e-6."""
    args = example.target, sampling
    upstream = [random(*example.target[:, 1:].shape, seed=5, scale=1.0)]
    together = run(ranks, in_support, example.cut, example.logits, args[0], example.chunk, sampling, upstream=upstream)
    (value,), gradient = dense_of(dense_in_support, example.logits, *args, upstream=upstream)
    close(together.result, value, **example.value())
    outside = gradient == 0
    assert not together.gradient[outside].any()
    close(together.gradient, example.cut.cp * gradient, **example.gradient())


# Packed rows. --------------------------------------------------------------------------------------------------------


@st.composite
def packings(draw: Any) -> tuple[int, int, list[int], int, int, int | None]:
    """TP, CP, lengths of sequences, which are multiples of 2 · CP, the width of the result, a seed, the chunk size."""
    tp, cp = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)]))
    lengths = [2 * cp * part for part in draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))]
    return tp, cp, lengths, draw(st.integers(1, 20)), draw(st.integers(0, 2**16)), draw(CHUNKS)


def packed(logits: Tensor, place: Place, target: Tensor, cu_seqlens: Tensor, width: int, chunk: int | None) -> Tensor:
    group = place.layout.cp_group_or_none
    return facade.from_parallel_logits_to_logprobs_packed_sequences(
        logits, target, cu_seqlens, width, *place.bounds_and_group, False, group, chunk
    )


@EXAMPLES
@given(packing=packings(), order=st.randoms(use_true_random=False))
def test_the_order_of_packing_permutes_rows(ranks: Ranks, packing: Any, order: Any) -> None:
    """Each sequence has the values and the gradient that it has alone, wherever it lies."""
    tp, cp, lengths, width, seed, chunk = packing
    sequences = list(range(len(lengths)))
    order.shuffle(sequences)
    logits = [random(length, 12, seed=seed + number) for number, length in enumerate(lengths)]
    target = [random_tokens(length, vocabulary=12, seed=seed + number) for number, length in enumerate(lengths)]
    upstream = random(len(lengths), width - 1, seed=seed, scale=1.0)
    ends = torch.tensor([0, *(lengths[number] for number in sequences)]).cumsum(0)
    cut = Cut((0, 5, 12) if tp == 2 else (0, 12), cp, 0, tuple(ends.tolist()))
    together = run(
        ranks,
        packed,
        cut,
        torch.cat([logits[number] for number in sequences])[None],
        torch.cat([target[number] for number in sequences])[None],
        ends,
        width,
        chunk,
        upstream=[upstream[sequences]],
    )
    gradients = together.gradient[0].split([lengths[number] for number in sequences])
    for row, number in enumerate(sequences):
        alone = (target[number], (0, lengths[number]), width)
        (value,), gradient = dense_of(dense.packed_logprobs, logits[number], *alone, upstream=[upstream[number][None]])
        close(together.result[row], value[0], **VALUE)
        close(gradients[row], cp * gradient, atol=cp * GRADIENT["atol"], rtol=GRADIENT["rtol"])


# Shares of a sequence. -----------------------------------------------------------------------------------------------


@given(size=st.integers(1, 8), chunk=st.integers(0, 5), dims=st.integers(1, 3), data=st.data())
def test_every_token_is_on_one_rank(size: int, chunk: int, dims: int, data: Any) -> None:
    seq_dim = data.draw(st.integers(0, dims - 1))
    shape = [2] * dims
    shape[seq_dim] = 2 * size * chunk
    tokens = torch.arange(2 ** (dims - 1) * 2 * size * chunk).view(shape)
    shares = [facade._get_tokens_on_this_cp_rank(tokens, rank, size, seq_dim) for rank in range(size)]
    assert {share.shape[seq_dim] for share in shares} == {2 * chunk}
    assert torch.equal(torch.cat([share.flatten() for share in shares]).sort().values, tokens.flatten())
