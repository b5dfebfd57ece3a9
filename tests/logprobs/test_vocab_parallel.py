"""Scores of rows over vocabulary shards, from logits and from hidden states, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dense
import pytest
import torch
from ranks import Collectives, HostWaits, Largest, Layout, Ranks
from sharded import GRADIENT, VALUE, Cut, Place, close, dense_of, even, random, random_tokens, run
from torch import Tensor

from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.shard import Shard
from lockstep_logprobs.softmax import Scoring
from lockstep_logprobs.vocab import vocab_logprobs

M, V, D, K = 7, 24, 5, 3
BOUNDS = [(0, V), even(V, 2), even(V, 4), (0, 5, V), (0, 0, 23, V)]


@dataclass(frozen=True)
class Case:
    """What is asked for; `keep` is the number of likeliest tokens that the floor leaves."""

    temperature: float = 1.0
    entropy: bool = True
    columns: int = K
    keep: int | None = None
    chosen: bool = False
    max_rows: int | None = None

    def scoring(self, shard: Shard) -> Scoring:
        return Scoring(
            shard=shard,
            temperature=self.temperature,
            entropy=self.entropy,
            sampled=self.chosen,
            max_rows=self.max_rows,
        )

    def floor(self, logits: Tensor) -> Tensor | None:
        """The smallest logit of the support, in the logits' own units."""
        return None if self.keep is None else logits.float().topk(self.keep).values[..., -1]

    def tokens(self, logits: Tensor) -> Tensor:
        """Anywhere in the vocabulary; a chosen token is one only."""
        return random_tokens(
            *logits.shape[:-1], 1 if self.chosen else self.columns, vocabulary=logits.shape[-1]
        )

    def upstream(self) -> list[Tensor | None]:
        own = random(M, 1 if self.chosen else self.columns, seed=3, scale=1.0)
        return [own, random(M, seed=4, scale=1.0)] if self.entropy else [own]


def reference(
    logits: Tensor, token: Tensor, case: Case, floor: Tensor | None
) -> tuple[Tensor, ...]:
    """log p and H of the softmax at a temperature over the support, which a chosen token always
    belongs to.
    """
    logits = logits.reshape(-1, logits.shape[-1])
    if floor is not None:
        outside = logits < floor[:, None].double()
        if case.chosen:
            outside &= token != torch.arange(logits.shape[-1])
        logits = logits.masked_fill(outside, -torch.inf)
    logits = logits / case.temperature
    logprob = dense.picked_logprobs(logits, token)
    return (logprob, -dense.sum_p_log_p(logits)) if case.entropy else (logprob,)


CASES = {
    "plain": Case(entropy=False),
    "entropy": Case(),
    "cold": Case(temperature=0.3),
    "hot": Case(temperature=4.0, entropy=False),
    "one column": Case(columns=1),
    "no column": Case(columns=0),
    "row by row": Case(temperature=0.7, max_rows=1),
    "blocks of three": Case(max_rows=3),
}
WITH_FLOOR = {
    "floor": Case(keep=6, entropy=False),
    "floor, entropy": Case(keep=6),
    "floor, cold": Case(keep=6, temperature=0.5, max_rows=2),
    "greedy": Case(keep=1),
    "chosen": Case(keep=6, chosen=True),
    "chosen, hot": Case(keep=2, chosen=True, temperature=2.0),
    "chosen, no entropy": Case(keep=2, chosen=True, entropy=False),
}


# From logits.
# --------------------------------------------------------------------------------------------------------


def from_logits(
    logits: Tensor, place: Place, token: Tensor, case: Case, floor: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    scoring = case.scoring(Shard(place.start, place.layout.tp_group))
    return vocab_logprobs(logits[0], token, scoring, floor)


def check(
    ranks: Ranks, case: Case, bounds: tuple[int, ...], logits: Tensor, token: Tensor | None = None
) -> None:
    token = case.tokens(logits[0]) if token is None else token
    args, upstream = (token, case, case.floor(logits[0])), case.upstream()
    together = run(ranks, from_logits, Cut(bounds), logits, *args, upstream=upstream)
    values, gradient = dense_of(reference, logits, *args, upstream=upstream)
    for result, value in zip(together.results, values, strict=True):
        assert result.dtype == torch.float32
        # A temperature multiplies the logits, and so their rounding.
        close(result, value, atol=VALUE["atol"] / min(1.0, case.temperature), rtol=VALUE["rtol"])
    bf16 = together.gradient_dtype == torch.bfloat16
    finite = logits.isfinite()
    close(
        together.gradient[finite],
        gradient[finite],
        atol=4 * GRADIENT["atol"] / min(1.0, case.temperature),
        rtol=2.0**-8 if bf16 else 2 * GRADIENT["rtol"],
    )
    assert together.gradient.isfinite().all()
    assert together.forward == {"allreduce": 2}
    assert not together.backward
    assert not together.waits


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES | WITH_FLOOR)
def test_vocab_parallel_logprobs_from_logits_match_float64(
    ranks: Ranks, name: str, bounds: tuple[int, ...]
) -> None:
    check(ranks, (CASES | WITH_FLOOR)[name], bounds, random(1, M, V))


@pytest.mark.parametrize("name", CASES | WITH_FLOOR)
def test_vocab_parallel_logprobs_from_bf16_logits_match_float64(ranks: Ranks, name: str) -> None:
    check(ranks, (CASES | WITH_FLOOR)[name], even(V, 2), random(1, M, V).bfloat16())


@pytest.mark.parametrize("bounds", [(0, V), even(V, 2), (0, 0, 23, V)], ids=str)
@pytest.mark.parametrize("name", CASES | WITH_FLOOR)
def test_vocab_parallel_logprobs_handle_minus_inf_logits(
    ranks: Ranks, name: str, bounds: tuple[int, ...]
) -> None:
    """First and last columns, a whole shard, all but what the floor needs."""
    logits = random(1, M, V)
    logits[0, 1:, 0] = logits[0, 1:, V - 1] = -torch.inf
    logits[0, 2, : V // 2] = logits[0, 3, V // 2 :] = -torch.inf
    logits[0, 4, 6:-7] = -torch.inf
    case = (CASES | WITH_FLOOR)[name]
    token = logits[0].topk(case.tokens(logits[0]).shape[-1]).indices
    check(ranks, case, bounds, logits, token)


@pytest.mark.parametrize("name", CASES | WITH_FLOOR)
def test_vocab_parallel_logprobs_handle_tokens_outside_vocabulary(ranks: Ranks, name: str) -> None:
    case, logits = (CASES | WITH_FLOOR)[name], random(1, M, V)
    token = case.tokens(logits[0])
    token[::2] = -100
    token[1] = V
    check(ranks, case, (0, 5, V), logits, token)


@pytest.mark.parametrize("keep", [None, 2])
def test_row_of_all_minus_inf_logits_gives_zero_entropy_and_gradient(keep: int | None) -> None:
    leaf = random(2, V)
    leaf[1] = -torch.inf
    floor, leaf = Case(keep=keep).floor(leaf), leaf.requires_grad_()
    logprob, entropy = vocab_logprobs(
        leaf, torch.zeros(2, 1, dtype=torch.long), Scoring(entropy=True), floor
    )
    assert entropy is not None
    assert logprob[1].item() == -torch.inf
    assert entropy[1].item() == 0.0
    (logprob[0].sum() + entropy.sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad[0].any()
    assert not leaf.grad[1].any()


# From hidden states.
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FromHidden:
    results: list[Tensor]
    hidden: Tensor | None
    weight: Tensor | None
    forward: dict[str, int]
    backward: dict[str, int]
    waits: list[str]


def from_hidden(
    layout: Layout,
    case: Case,
    bounds: tuple[int, ...],
    frozen: bool,
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    upstream: list[Tensor],
) -> FromHidden:
    start, end = bounds[layout.tp_rank : layout.tp_rank + 2]
    states, head = (
        hidden.clone().requires_grad_(),
        weight[start:end].clone().requires_grad_(not frozen),
    )
    with Collectives() as forward, HostWaits() as waits:
        found = hidden_logprobs(states, head, token, case.scoring(Shard(start, layout.tp_group)))
    results = [result for result in found if result is not None]
    with Collectives() as backward, waits:
        torch.autograd.backward(results, upstream)
    detached = [result.detach() for result in results]
    return FromHidden(
        detached, states.grad, head.grad, dict(forward.counts), dict(backward.counts), waits.found
    )


def dense_from_hidden(
    case: Case, hidden: Tensor, weight: Tensor, token: Tensor, upstream: list[Tensor]
) -> tuple[list[Tensor], Tensor, Tensor]:
    states, head = hidden.double().requires_grad_(), weight.double().requires_grad_()
    results = reference(states @ head.T, token, case, None)
    of_states, of_head = torch.autograd.grad(
        results, (states, head), [given.double() for given in upstream]
    )
    return [result.detach() for result in results], of_states, of_head


def check_alone(
    case: Case,
    hidden: Tensor,
    weight: Tensor,
    token: Tensor,
    *,
    autocast: bool = False,
    **tolerance: float,
) -> tuple[Tensor, Tensor]:
    """In one process; returns the log-probabilities, and those in float64."""
    upstream = [
        random(len(hidden), token.shape[-1], seed=3, scale=1.0),
        random(len(hidden), seed=4, scale=1.0),
    ]
    states, head = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = hidden_logprobs(states, head, token, case.scoring(Shard()))
    results = [result for result in found if result is not None]
    torch.autograd.backward(results, upstream)
    values, of_hidden, of_weight = dense_from_hidden(case, hidden, weight, token, upstream)
    for actual, expected in zip(
        [*results, states.grad, head.grad], [*values, of_hidden, of_weight], strict=True
    ):
        assert actual is not None
        close(actual, expected, **tolerance)
    assert all(result.dtype == torch.float32 for result in results)
    return results[0], values[0]


def check_hidden(
    ranks: Ranks,
    case: Case,
    bounds: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    frozen: bool = False,
) -> None:
    hidden, weight = random(M, D, scale=1.0).to(dtype), random(V, D, seed=2, scale=1.0).to(dtype)
    token = case.tokens(torch.empty(M, V))
    token[0, :1] = -100
    upstream = [given for given in case.upstream() if given is not None]
    results, of_hidden, of_weight = dense_from_hidden(case, hidden, weight, token, upstream)
    # bf16: logits of size 8 are products rounded to 8 bits, and so are the two gradients.
    fine = {"atol": 2e-5 / min(1.0, case.temperature), "rtol": 1e-5}
    tolerance = (
        fine
        if dtype == torch.float32
        else {"atol": 2.0**-4 / min(1.0, case.temperature), "rtol": 2.0**-6}
    )
    args = case, bounds, frozen, hidden, weight, token, upstream
    for rank, outcome in enumerate(ranks.run(from_hidden, *args, tp=len(bounds) - 1)):
        for result, value in zip(outcome.results, results, strict=True):
            assert result.dtype == torch.float32
            close(result, value, **tolerance)
        assert outcome.hidden is not None
        assert outcome.hidden.dtype == dtype
        close(outcome.hidden, of_hidden, **tolerance)
        assert (outcome.weight is None) == frozen
        if outcome.weight is not None:
            assert outcome.weight.dtype == dtype
            close(outcome.weight, of_weight[bounds[rank] : bounds[rank + 1]], **tolerance)
        assert outcome.forward == {"allreduce": 2}
        assert outcome.backward == {"allreduce": 1}
        assert not outcome.waits


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_vocab_parallel_logprobs_from_hidden_states_match_float64(
    ranks: Ranks, name: str, bounds: tuple[int, ...]
) -> None:
    check_hidden(ranks, CASES[name], bounds)


@pytest.mark.parametrize("name", CASES)
def test_vocab_parallel_logprobs_from_bf16_hidden_states_match_float64(
    ranks: Ranks, name: str
) -> None:
    check_hidden(ranks, CASES[name], even(V, 2), dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_hidden_logprobs_match_float64_when_vocabulary_spans_many_tiles(
    temperature: float, dtype: torch.dtype
) -> None:
    """Tokens, sums and gradients of each piece of the head, and of each block of rows, find their
    own place.
    """
    rows, vocabulary = 12, 5000
    case = Case(temperature, max_rows=5)
    hidden, weight = (
        random(rows, D, scale=0.5).to(dtype),
        random(vocabulary, D, seed=2, scale=0.5).to(dtype),
    )
    weight[4500:] *= 3.0  # the largest logits come last
    token = torch.tensor([[0, 2047, 4999], [2048, 4095, 4096]]).repeat(rows // 2, 1)
    if dtype == torch.float32:
        check_alone(case, hidden, weight, token, atol=1e-4, rtol=1e-5)
    else:
        check_alone(case, hidden, weight, token, atol=2.0**-3, rtol=2.0**-6)


def test_hidden_logprobs_multiply_in_bf16_under_autocast() -> None:
    """As for the model's own layers: parameters stay fp32, products are bf16; the sums over the
    vocabulary are fp32.
    """
    hidden, weight = random(M, D, scale=1.0), random(V, D, seed=2, scale=1.0)
    token = random_tokens(M, K, vocabulary=V)
    found, exact = check_alone(
        Case(), hidden, weight, token, autocast=True, atol=2.0**-4, rtol=2.0**-6
    )
    assert (found - exact).abs().max() > 1e-4, "the products are not bf16"


# Memory.
# -------------------------------------------------------------------------------------------------------------


def largest(function: Callable[[], tuple[Tensor, Tensor | None]]) -> tuple[int, int]:
    with Largest() as forward:
        logprob, entropy = function()
    assert entropy is not None
    with Largest() as backward:
        (logprob.sum() + entropy.sum()).backward()
    return forward.bytes, backward.bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vocab_logprobs_allocate_no_second_copy_of_logits(dtype: torch.dtype) -> None:
    """Forward works in blocks; backward takes the gradient, in the logits' type, and blocks."""
    rows, vocabulary = 256, 2**15
    logits = torch.zeros(rows, vocabulary, dtype=dtype, requires_grad=True)
    scoring = Scoring(entropy=True)
    token = torch.zeros(rows, 1, dtype=torch.long)
    forward, backward = largest(lambda: vocab_logprobs(logits, token, scoring))
    bytes_of_logits = rows * vocabulary * logits.element_size()
    assert forward <= bytes_of_logits // 2
    assert backward == bytes_of_logits


def test_hidden_logprobs_never_materialize_full_logits() -> None:
    """Nothing is as large as the logits, nor grows with the vocabulary but what has the head's own
    size.
    """
    sizes = []
    for vocabulary in (2**14, 2**16):
        hidden = torch.zeros(512, 8, requires_grad=True)
        weight = torch.zeros(vocabulary, 8, requires_grad=True)
        token = torch.zeros(512, 1, dtype=torch.long)
        sizes.append(
            largest(
                lambda h=hidden, w=weight, t=token: hidden_logprobs(h, w, t, Scoring(entropy=True))
            )
        )
    (forward, backward), (forward_wide, backward_wide) = sizes
    assert forward_wide == forward
    assert forward <= 512 * 2**14 * 4 // 4
    assert backward_wide == max(backward, 2**16 * 8 * 4)
