"""Time and memory of the log-probability library at a real model's vocabulary, beside plain PyTorch
and NeMo RL.

    python -m benchmarks.mission.logprob_speed OUT [CHECKOUT]

Two processes over gloo, one thread each, share the vocabulary; all sides run in turn on the same
inputs, in one run, and their results and gradients are compared. Then one process alone, beside
`log_softmax` and `gather`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.logprobs import Setting, over_ranks
from benchmarks.logprobs_measure import Work, measure_work
from lockstep_logprobs.hidden import hidden_logprobs
from lockstep_logprobs.vocab import vocab_logprobs

SHAPE = (1, 512, 49_152)
"""B, S, and SmolLM2's vocabulary."""
HIDDEN = 576
REPEATS = 3


def from_logits() -> Work:
    """log p of a token at each position, from logits that are there."""
    _, length, vocabulary = SHAPE
    target = torch.randint(vocabulary, (length, 1))
    logits = torch.randn(length, vocabulary).requires_grad_()
    ways = {
        "Lockstep": lambda: [vocab_logprobs(logits, target)[0]],
        "naive": lambda: [logits.log_softmax(-1).gather(-1, target)],
    }
    return Work([logits], ways)


def from_hidden() -> Work:
    """The same from hidden states and a head."""
    _, length, vocabulary = SHAPE
    target = torch.randint(vocabulary, (length, 1))
    states = torch.randn(length, HIDDEN).requires_grad_()
    weight = torch.randn(vocabulary, HIDDEN).mul_(HIDDEN**-0.5).requires_grad_()
    ways = {
        "Lockstep": lambda: [hidden_logprobs(states, weight, target)[0]],
        "naive": lambda: [(states @ weight.t()).log_softmax(-1).gather(-1, target)],
    }
    return Work([states, weight], ways)


def main() -> int:
    """Entry point. Returns the exit code."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    peer = sys.argv[2] if len(sys.argv) > 2 else ""
    torch.manual_seed(0)
    found = {
        "log p, one process": measure_work(from_logits(), REPEATS),
        "log p from hidden states, one process": measure_work(from_hidden(), REPEATS),
    }
    with tempfile.TemporaryDirectory(prefix="lockstep-speed-") as folder:
        found |= over_ranks(Setting(REPEATS, folder, peer, SHAPE))
    plain = {
        kernel: {way: dataclasses.asdict(own) for way, own in ways.items()}
        for kernel, ways in found.items()
    }
    aside = out.with_name(f"{out.name}.part")
    aside.write_text(json.dumps(plain, indent=1))
    os.rename(aside, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
