"""The kernels that `benchmarks.logprobs` measures over ranks: the inputs and the sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.baselines import naive_logprobs as naive
from benchmarks.logprobs_measure import Forward, Work
from lockstep_logprobs import model_utils as ours

CHUNK = 256
"""Positions to a chunk, which NeMo RL's functions take and Lockstep's do not need."""
K = 64
HIDDEN = 1024
PACKED = 64
"""Sequences in the packed row."""

Call = Callable[[Any], list[Tensor]]
"""A call of a library that has the functions of `model_utils`."""


@dataclass(frozen=True)
class Place:
    """A rank and the shapes of its inputs.

    All random numbers are seeded: unsharded inputs are equal on all ranks.

    Attributes:
        rank: Rank in the group.
        group: All ranks.
        batch: B.
        sequence: S.
        vocab: V.
        peer: NeMo RL's module, where a checkout of it is at hand.
    """

    rank: int
    group: dist.ProcessGroup
    batch: int
    sequence: int
    vocab: int
    peer: ModuleType | None = None

    def ways(
        self, naively: Forward, chunked: Call, plain: Call | None = None
    ) -> dict[str, Forward]:
        """What one writes first, and the same call of Lockstep and of the peer: with chunks, and as
        the peer does it by default, without.
        """
        found: dict[str, Forward] = {"Lockstep": partial(chunked, ours)}
        if self.peer is not None and plain is not None:
            found["NeMo RL"] = partial(plain, self.peer)
            if chunked is not plain:
                found["NeMo RL, chunked"] = partial(chunked, self.peer)
        found["naive"] = naively
        return found

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def columns(self) -> int:
        return self.vocab // self.size

    @property
    def start(self) -> int:
        return self.rank * self.columns

    @property
    def end(self) -> int:
        return self.start + self.columns

    def tokens(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(self.vocab, shape, generator=generator)

    def normal(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, generator=generator).mul_(scale)

    def logits(self, target: Tensor, columns: int, start: int, dtype: torch.dtype) -> Tensor:
        """Logits of this rank, the target's raised so that any sampling keeps it; they receive a
        gradient.
        """
        z = self.normal(*target.shape, columns, seed=2 + self.rank)
        inside = (target >= start) & (target < start + columns)
        z.scatter_add_(
            -1, (target - start).clamp(0, columns - 1)[..., None], 8.0 * inside.float()[..., None]
        )
        return z.to(dtype).requires_grad_()

    def shard(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Logits [B, S, v] and target [B, S]."""
        target = self.tokens(self.batch, self.sequence)
        return self.logits(target, self.columns, self.start, dtype), target


@dataclass(frozen=True)
class Kernel:
    """One row of the table.

    Attributes:
        name: What it computes.
        build: Builds the inputs of a rank.
        slow: The naive side takes seconds, so there are fewer repetitions.
    """

    name: str
    build: Callable[[Place], Work]
    slow: bool = False


def logprob(place: Place, dtype: torch.dtype = torch.float32) -> Work:
    logits, target = place.shard(dtype)
    span = (place.start, place.end)
    group = place.group
    ways = place.ways(
        lambda: [naive.logprobs(logits, target, place.start, group)],
        lambda library: [
            library.ChunkedDistributedLogprob.apply(logits, target, *span, CHUNK, group)
        ],
        lambda library: [library.DistributedLogprob.apply(logits, target, *span, group)],
    )
    return Work([logits], ways, _tolerance(dtype))


def gather(place: Place, dtype: torch.dtype = torch.float32) -> Work:
    logits, _ = place.shard(dtype)
    index = place.tokens(place.batch, place.sequence, K)
    span = (place.start, place.end, CHUNK, place.group)

    def call(library: Any) -> list[Tensor]:
        return [library.ChunkedDistributedGatherLogprob.apply(logits, index, *span)]

    ways = place.ways(
        lambda: [naive.gather_logprobs(logits, index, place.start, place.group)], call, call
    )
    return Work([logits], ways, _tolerance(dtype))


def entropy(place: Place, dtype: torch.dtype = torch.float32) -> Work:
    logits, _ = place.shard(dtype)

    def call(library: Any) -> list[Tensor]:
        return [library.ChunkedDistributedEntropy.apply(logits, CHUNK, place.group)]

    ways = place.ways(lambda: [naive.negative_entropy(logits, place.group)], call, call)
    return Work([logits], ways, _tolerance(dtype))


def cross_entropy(place: Place) -> Work:
    student, target = place.shard()
    teacher = place.normal(*target.shape, place.columns, seed=20 + place.rank)

    def call(library: Any) -> list[Tensor]:
        return [library.DistributedCrossEntropy.apply(student, teacher, place.group)]

    ways = place.ways(lambda: [naive.cross_entropy(student, teacher, place.group)], call, call)
    return Work([student], ways)


def hidden(place: Place, dtype: torch.dtype = torch.float32) -> Work:
    target = place.tokens(place.batch, place.sequence)
    share = (place.sequence // place.size, place.batch, HIDDEN)
    states = place.normal(*share, seed=2 + place.rank).to(dtype).requires_grad_()
    weight = (
        place.normal(place.columns, HIDDEN, seed=20 + place.rank, scale=HIDDEN**-0.5)
        .to(dtype)
        .requires_grad_()
    )
    span = (place.start, place.end, CHUNK, place.group)
    call: Call = lambda library: [  # noqa: E731
        library.ChunkedDistributedHiddenStatesToLogprobs.apply(states, target, weight, *span)
    ]
    ways = place.ways(
        lambda: [naive.hidden_logprobs(states, target, weight, place.start, place.group)],
        call,
        call,
    )
    return Work([states, weight], ways, 10 * _tolerance(dtype))


def sampled(place: Place, top_k: int | None = None, top_p: float = 1.0) -> Work:
    logits, target = place.shard()
    group = place.group
    ways = place.ways(
        lambda: [naive.sampled_logprobs(logits, target, place.group, top_k, top_p)],
        lambda library: [
            library.ChunkedDistributedLogprobWithSampling.apply(
                logits, target, group, top_k, top_p, CHUNK
            )
        ],
        lambda library: [
            library.DistributedLogprobWithSampling.apply(logits, target, group, top_k, top_p)
        ],
    )
    return Work([logits], ways)


def distillation(place: Place) -> Work:
    student, target = place.shard()
    index = place.tokens(*target.shape, K)
    teacher = place.normal(*target.shape, K, seed=20)
    args = (student, teacher, index, True, True, place.rank, place.group)
    call: Call = lambda library: _some(library.get_distillation_topk_logprobs_from_logits(*args))  # noqa: E731
    ways = place.ways(
        lambda: naive.distillation(student, teacher, index, place.start, place.group), call, call
    )
    return Work([student], ways)


def topk(place: Place) -> Work:
    logits, _ = place.shard()
    logits = logits.detach()
    span = {"vocab_start_index": place.start, "vocab_end_index": place.end}
    # the values: which of equal logits comes first is not defined
    ways = place.ways(
        lambda: naive.topk(logits, K, place.group)[:1],
        lambda library: list(
            library.distributed_vocab_topk(logits, K, place.group, **span, chunk_size=CHUNK)
        )[:1],
        lambda library: list(library.distributed_vocab_topk(logits, K, place.group, **span))[:1],
    )
    return Work([], ways)


def gather_logits(place: Place) -> Work:
    logits, target = place.shard()
    index = place.tokens(*target.shape, K)
    span = {"vocab_start_index": place.start, "vocab_end_index": place.end}
    ways = place.ways(
        lambda: [naive.columns(logits.float(), index, place.start, place.group)],
        lambda library: [
            library.gather_logits_at_global_indices(
                logits, index, place.group, **span, chunk_size=CHUNK
            )
        ],
        lambda library: [
            library.gather_logits_at_global_indices(logits, index, place.group, **span)
        ],
    )
    return Work([logits], ways)


def packed(place: Place, context_parallel: bool) -> Work:
    """One row of sequences of equal length; the ranks share the vocabulary, or else each
    sequence.
    """
    tokens = place.batch * place.sequence
    target = place.tokens(1, tokens)
    bounds = torch.arange(0, tokens + 1, tokens // PACKED)
    vocab, context = (None, place.group) if context_parallel else (place.group, None)
    start, columns = (0, place.vocab) if context_parallel else (place.start, place.columns)
    share = place.size if context_parallel else 1
    logits = place.normal(1, tokens // share, columns, seed=2 + place.rank).requires_grad_()
    width = tokens // PACKED
    args = (logits, target, bounds, width, start, start + columns, vocab, False, context)
    name = "from_parallel_logits_to_logprobs_packed_sequences"
    ways = place.ways(
        lambda: [naive.packed_logprobs(logits, target, bounds, width, start, vocab, context)],
        lambda library: [vars(library)[name](*args, CHUNK)],
        None
        if context_parallel
        else lambda library: [vars(library)[name](*args)],  # the peer's wants CUDA
    )
    return Work([logits], ways)


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 2e-2


def _some(tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


BF16 = torch.bfloat16
KERNELS = (
    Kernel("log-probability, fp32", logprob),
    Kernel("log-probability, bf16", partial(logprob, dtype=BF16)),
    Kernel(f"gather K={K}, fp32", gather),
    Kernel(f"gather K={K}, bf16", partial(gather, dtype=BF16)),
    Kernel("entropy, fp32", entropy),
    Kernel("entropy, bf16", partial(entropy, dtype=BF16)),
    Kernel("cross-entropy of two models", cross_entropy),
    Kernel(f"hidden states H={HIDDEN}, fp32", hidden, slow=True),
    Kernel(f"hidden states H={HIDDEN}, bf16", partial(hidden, dtype=BF16), slow=True),
    Kernel("sampling k=50 p=0.9", partial(sampled, top_k=50, top_p=0.9), slow=True),
    Kernel("sampling k=50", partial(sampled, top_k=50), slow=True),
    Kernel("sampling p=0.9", partial(sampled, top_p=0.9), slow=True),
    Kernel("distillation with entropy", distillation, slow=True),
    Kernel(f"top-k k={K}", topk, slow=True),
    Kernel("gather of raw logits", gather_logits),
    Kernel(f"packed, {PACKED} sequences", partial(packed, context_parallel=False)),
    Kernel(f"packed, {PACKED} sequences, CP", partial(packed, context_parallel=True)),
)
