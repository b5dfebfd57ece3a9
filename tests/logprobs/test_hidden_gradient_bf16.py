"""The bf16 gradient of hidden states is rounded once, however many pieces the vocabulary is taken
in.
"""

from __future__ import annotations

import pytest
import torch

from lockstep_logprobs.hidden import hidden_logprobs

COLUMNS = 2048
"""Of a piece of the vocabulary."""


@pytest.mark.parametrize("pieces", [2, 8, 32])
def test_bf16_hidden_gradient_error_does_not_grow_with_vocabulary_size(pieces: int) -> None:
    """Pieces pull against each other, so that rounding one piece's sum would be far more than what
    is left of all.

    All logits are 0 and the size of the vocabulary is a power of two, so the probabilities are
    exact in bf16.
    """
    rows, width, vocabulary = 3, 16, pieces * COLUMNS
    sign_V = (-1.0) ** (torch.arange(vocabulary) // COLUMNS)
    noise_VD = torch.randn(vocabulary, width, generator=torch.Generator().manual_seed(0))
    weight_VD = (1.37 * sign_V[:, None] + noise_VD).bfloat16()
    hidden_MD = torch.zeros(rows, width, dtype=torch.bfloat16, requires_grad=True)
    token_MK = torch.arange(rows)[:, None]
    logprob, _ = hidden_logprobs(hidden_MD, weight_VD, token_MK)
    logprob.sum().backward()
    own = float(torch.tensor(1 - 1 / vocabulary, dtype=torch.float32).bfloat16())
    pull_MV = torch.full((rows, vocabulary), -1 / vocabulary, dtype=torch.float64).scatter_(
        1, token_MK, own
    )
    expected = pull_MV @ weight_VD.double()
    assert hidden_MD.grad is not None
    torch.testing.assert_close(hidden_MD.grad.double(), expected, rtol=2.0**-8, atol=1e-6)
