"""Log-probabilities from hidden states on one process, for `benchmarks.logprobs`: with the head's matrix product."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.logprobs_measure import Figures, Work, measure_work, products
from lockstep_logprobs.hidden import hidden_logprobs

HIDDEN = 256
HEAD_TOKENS, HEAD_VOCAB = 1024, 32_768


def head(device: torch.device, repeats: int) -> dict[str, Figures]:
    """Measures Lockstep, plain autograd with all logits, PyTorch's fused function, and the matrix products alone."""
    generator = torch.Generator(device).manual_seed(1)
    target = torch.randint(HEAD_VOCAB, (HEAD_TOKENS,), generator=generator, device=device)
    states = torch.randn(HEAD_TOKENS, HIDDEN, device=device).requires_grad_()
    weight = torch.randn(HEAD_VOCAB, HIDDEN, device=device).mul_(HIDDEN**-0.5).requires_grad_()
    options = nn.LinearCrossEntropyOptions()
    ways = {
        "Lockstep": lambda: [hidden_logprobs(states, weight, target[:, None])[0][:, 0]],
        "naive": lambda: [(states @ weight.t()).log_softmax(-1).gather(-1, target[:, None])[:, 0]],
        "linear_cross_entropy, chunked": lambda: [
            -F.linear_cross_entropy(states, weight, target, reduction="none", options=options)
        ],
    }
    work = Work([states, weight], ways, products=products(HEAD_TOKENS, weight))
    return measure_work(work, device, repeats)
