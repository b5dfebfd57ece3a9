"""Whether some tokens' logits are always raised or lowered: a bias for each token that explains a side's numbers."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 60
_MOST_NUMBERS = 30_000_000
"""Logits that are looked at in one step."""
_SMALL = 1e-6
"""Weight of the squared biases, so that those of tokens that nobody saw stay where they are."""


def fitted_bias(logits_MV: Tensor, token_M: Tensor, said_M: Tensor) -> Tensor:
    """Biases with which logits give the numbers that were said, by least squares, nats [V].

    Args:
        logits_MV: Divided by the temperature already.
        token_M: Whose log-probabilities they are.
        said_M: What a side says these are, nats.
    """
    count = max(1, _MOST_NUMBERS // logits_MV.shape[1])
    logits_MV, token_M1, said_M1 = logits_MV[:count].float(), token_M[:count, None], said_M[:count, None].float()
    bias_V = torch.zeros(logits_MV.shape[1], requires_grad=True)
    search = torch.optim.LBFGS([bias_V], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def off() -> Tensor:
        search.zero_grad()
        guessed = (logits_MV + bias_V).log_softmax(-1).gather(-1, token_M1)
        loss = (guessed - said_M1).square().mean() + _SMALL * bias_V.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        search.step(off)  # pyright: ignore[reportArgumentType] (it wants a float, and calls it as one)
    return bias_V.detach()
