"""Alignment: each per-token column describes its own token; only this module shifts by one.

A causal model's output at position t−1 is computed from x_0 … x_{t−1}, so it describes token t: its
logits give log π(x_t | x_<t), its value head gives V(x_<t), the value of the state *before* token t
is emitted. A critic read at position t instead would give V(x_≤t) = Q(x_<t, x_t): a baseline that
knows the action, whose advantage is noise around zero once the critic is good.
(docs/algorithms/ppo.md shows how such a bug looks in a run.)
"""

from __future__ import annotations

from torch import Tensor

from lockstep.core.batch import Batch


def state_before(position_M: Tensor) -> Tensor:
    """Flat positions of the model outputs that predict the tokens: one to the left of each.

    Args:
        position_M: Flat indices of tokens, none the first of its sequence, int64 [M].

    Returns:
        Flat indices into the model's outputs, int64 [M].
    """
    return position_M - 1


def target_indices(batch: Batch) -> Tensor:
    """Flat indices of the tokens that have a state before them: all but each sequence's first.

    Returns int64 [M].
    """
    return batch.position.nonzero().squeeze(-1)


def state_after(batch: Batch) -> Tensor:
    """Flat indices of the outputs that describe the state after each sequence's last token.

    Returns int64 [B].
    """
    return (batch.starts + batch.lengths - 1).to(batch.tokens.device)
