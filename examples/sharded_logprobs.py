"""Log-probabilities over a vocabulary that two processes share, from logits and from hidden states.

    python examples/sharded_logprobs.py

Each process holds half of the output head. It scores the same tokens from its half of the logits,
and once more from the hidden states, where the logits never exist whole. Both, and the gradient of
these states, are compared with one process that holds everything.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from lockstep_logprobs import Scoring, Shard, hidden_logprobs, sum_gradient, vocab_logprobs

TOKENS, HIDDEN, VOCAB, RANKS = 64, 32, 1000, 2


def main(rank: int, folder: str) -> None:
    """One of the processes; they meet in `folder`."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)
    hidden_MD = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    head_VD = torch.randn(VOCAB, HIDDEN)
    token_M1 = torch.randint(VOCAB, (TOKENS, 1))

    own = slice(rank * VOCAB // RANKS, (rank + 1) * VOCAB // RANKS)
    group = dist.group.WORLD
    scoring = Scoring(shard=Shard(own.start, group), temperature=0.7, entropy=True)
    # All ranks share the hidden states, and each sees its own logits: the gradient is the sum of
    # what they see.
    own_logits = sum_gradient(hidden_MD, group) @ head_VD[own].t()
    from_logits, entropy = vocab_logprobs(own_logits, token_M1, scoring)
    from_hidden, _ = hidden_logprobs(hidden_MD, head_VD[own], token_M1, scoring)  # sums by itself
    assert entropy is not None
    (gradient,) = torch.autograd.grad(from_hidden.sum() + entropy.sum(), hidden_MD)

    logprob_MV = (hidden_MD @ head_VD.t() / 0.7).log_softmax(-1)
    alone = logprob_MV.gather(1, token_M1)
    (expected,) = torch.autograd.grad(
        alone.sum() - (logprob_MV.exp() * logprob_MV).sum(), hidden_MD
    )
    assert torch.allclose(gradient, expected, atol=1e-4)
    if rank == 0:
        print(f"mean log p {from_hidden.mean():.4f} nats, mean entropy {entropy.mean():.4f} nats")
        print(
            f"largest difference from one process: {(from_logits - alone).abs().max():.1e} from "
            "logits, ",
            end="",
        )
        print(f"{(from_hidden - alone).abs().max():.1e} from hidden states")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start_processes(main, (folder,), RANKS, start_method="spawn")
