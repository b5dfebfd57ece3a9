"""What sharded log-probabilities have to equal: float64 on one process, whole logits, plain
autograd.

Written to be read, not to be quick. Letters: B sequences, S positions, V vocabulary, K picked
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def logprobs(logits_V: Tensor, token: Tensor) -> Tensor:
    """log p(token), shape of `token`; 0, whatever the logits, where the token is not in the
    vocabulary.
    """
    vocabulary = logits_V.shape[-1]
    inside = (token >= 0) & (token < vocabulary)
    picked = logits_V.log_softmax(-1).gather(-1, token.clamp(0, vocabulary - 1)[..., None])[..., 0]
    return torch.where(inside, picked, 0.0)


def picked_logprobs(logits_V: Tensor, index_K: Tensor) -> Tensor:
    """log p of K tokens per position."""
    return logprobs(logits_V[..., None, :].expand(*index_K.shape, -1), index_K)


def sum_p_log_p(logits_V: Tensor) -> Tensor:
    """Σ p log p: the entropy with its sign turned; 0 · log 0 = 0."""
    logprob = logits_V.log_softmax(-1)
    return (logprob.exp() * logprob.masked_fill(logprob.isneginf(), 0.0)).sum(-1)


def sum_p_log_q(teacher_V: Tensor, student_V: Tensor) -> Tensor:
    """Σ p log q with p of the teacher, q of the student; 0 · log 0 = 0."""
    p = teacher_V.softmax(-1).detach()
    return (p * student_V.log_softmax(-1).masked_fill(p == 0, 0.0)).sum(-1)


def filtered(logits_V: Tensor, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """-inf outside the support: first top-k (ties with the k-th stay), then top-p of what is left,
    renormalised.

    A token stays in top-p where the tokens that are likelier do not make up p already; so the
    likeliest always stays.
    """
    if top_k is not None and 0 < top_k < logits_V.shape[-1]:
        smallest = logits_V.topk(top_k).values[..., -1:]
        logits_V = logits_V.masked_fill(logits_V < smallest, -torch.inf)
    if top_p < 1.0:
        p, order = logits_V.softmax(-1).sort(descending=True)
        likelier = p.cumsum(-1) - p
        outside = torch.empty_like(p, dtype=torch.bool).scatter(-1, order, likelier >= top_p)
        outside.scatter_(-1, order[..., :1], False)
        logits_V = logits_V.masked_fill(outside, -torch.inf)
    return logits_V


def shift(target: Tensor) -> Tensor:
    """The target of each position: the next token.

    The last position has none and takes the first.
    """
    return target.roll(-1, -1)


def zigzag(length: int, size: int, rank: int) -> list[int]:
    """Positions of a rank: of 2 · size chunks the rank-th and the rank-th from the end."""
    chunk = length // (2 * size)
    last = 2 * size - 1 - rank
    return [*range(rank * chunk, (rank + 1) * chunk), *range(last * chunk, (last + 1) * chunk)]


def packed_zigzag(cu_seqlens: Sequence[int], size: int, rank: int) -> list[int]:
    """Positions of a rank in a packed row: each sequence is divided on its own."""
    pairs = itertools.pairwise(cu_seqlens)
    return [
        start + position for start, end in pairs for position in zigzag(end - start, size, rank)
    ]


def packed_logprobs(
    logits_TV: Tensor, target_T: Tensor, cu_seqlens: Sequence[int], width: int
) -> Tensor:
    """[B, width - 1]: of each sequence all but its last position, cut or filled with 0."""
    rows = []
    for start, end in itertools.pairwise(cu_seqlens):
        values = logprobs(logits_TV[start:end], shift(target_T[start:end]))[:-1][: width - 1]
        rows.append(torch.cat([values, values.new_zeros(width - 1 - len(values))]))
    return torch.stack(rows) if rows else logits_TV.sum() * logits_TV.new_zeros(0, width - 1)
