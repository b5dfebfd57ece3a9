"""The estimated bytes that one rank sends per step, by collective: those of a ring, which is the least.

An all-gather or a reduce-scatter of S bytes over g ranks takes S·(g − 1)/g from each, an all-reduce twice that. A few
numbers per token (maxima and sums of the vocabulary, log-probabilities) and per step (counts, norms) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.models.heads import scores_tokens
from lockstep.plan.memory import Rank
from lockstep.plan.sizes import FP32


@dataclass(frozen=True)
class Flow:
    """The traffic of one collective.

    Attributes:
        what: Name of the collective and its contents.
        over: The dimension of ranks.
        size: Bytes that a rank sends per step of the algorithm.
    """

    what: str
    over: str
    size: int


def flows(rank: Rank) -> list[Flow]:
    """Traffic of all passes of a step of the algorithm, those that learn and those that score."""
    return [flow for flow in [*_weights(rank), *_states(rank), *_keys(rank)] if flow.size]


def _passes(rank: Rank) -> tuple[int, int]:
    """Number of passes that learn, and of passes that only score."""
    load = rank.load
    learning = load.updates * load.passes(rank.learner, load.rows) if rank.trained else 0
    return learning, load.passes(rank.learner, load.scored)


def ring(size: int, ranks: int) -> int:
    """Bytes that each rank sends in a ring all-gather or reduce-scatter of `size` bytes."""
    return size * (ranks - 1) // ranks


def _weights(rank: Rank) -> Iterator[Flow]:
    """Traffic of weights: layers are gathered in each direction of a pass, the rest once per batch.

    Gradients are reduced once per batch, or in every pass with `sync_every_pass`.
    """
    learning, scoring = _passes(rank)
    updates = rank.load.updates if rank.trained else 0
    layers = rank.sizes.layers * rank.gathered_layer
    both = learning * 2 * layers + updates * rank.root + scoring * layers + (rank.root if scoring else 0)
    yield Flow("all-gather of weights", "dp·cp", ring(both, rank.shares))
    cut = (learning if rank.learner.sync_every_pass else updates) * (rank.learned - rank.learned_whole)
    yield Flow("reduce-scatter of gradients", "dp·cp", ring(cut, rank.shares))
    copies = rank.learner.parallel.dp_replicate
    yield Flow("all-reduce of gradients", "dp_replicate", 2 * ring(cut // rank.shares, copies))
    whole, over = updates * rank.learned_whole, "dp·cp" if copies == 1 else "dp_replicate·dp·cp"
    yield Flow("all-reduce of whole vectors' gradients", over, 2 * ring(whole, rank.shares * copies))


def _states(rank: Rank) -> Iterator[Flow]:
    """Traffic of states: two gathers and two scatters in a layer and direction; the embedding, and the last states."""
    learning, scoring = _passes(rank)
    sizes, again = rank.sizes, int(rank.learner.activation_checkpointing)
    states = rank.own * sizes.hidden
    forward, layers = learning * (1 + again) + scoring, 2 * sizes.layers
    gathered = forward * layers * FP32 + learning * (layers * rank.type + FP32) + (learning + scoring) * FP32
    scattered = forward * layers * rank.type + learning * layers * FP32 + (learning + scoring) * FP32
    tp = rank.learner.parallel.tp
    yield Flow("all-gather of states", "tp", ring(gathered * states, tp))
    yield Flow("reduce-scatter of states", "tp", ring(scattered * states, tp))
    if scores_tokens(rank.head):
        yield Flow("all-reduce of the head's states", "tp", 2 * ring(learning * rank.type * states, tp))


def _keys(rank: Rank) -> Iterator[Flow]:
    learning, scoring = _passes(rank)
    again, tp = int(rank.learner.activation_checkpointing), rank.learner.parallel.tp
    tokens = rank.load.tokens(rank.learner)
    whole = tokens * 2 * rank.sizes.keys // tp * rank.type * rank.sizes.layers
    cp = rank.learner.parallel.cp
    yield Flow("all-gather of keys and values", "cp", ring((learning * (1 + again) + scoring) * whole, cp))
    yield Flow("reduce-scatter of their gradients", "cp", ring(learning * whole, cp))
