"""Whether decoding gives the head what prefill gives it: then what differs lies in what is done with the logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lockstep.doctor.case import Case, own_logits, size

_MOST = 0.3
"""Of the difference between decoding and prefill: what other states may make of it, to be no cause."""


@torch.no_grad()
def decodes_the_same_states(case: Case, off_N: Tensor) -> bool:
    """Whether the head is given, while the inference side draws, the states that prefill gives for the same tokens.

    Which row of which step is which token need not be known: each state of prefill is looked up among all that decoding
    gave the head.

    Args:
        case: A disagreement whose inference side draws.
        off_N: Decoding minus prefill, nats [N].
    """
    view = case.infer
    if not view.can("modules"):
        return False
    modules = view.backend.network(view.conditions).modules
    head = modules.get_output_embeddings() if isinstance(modules, PreTrainedModel) else None
    if not isinstance(head, nn.Linear):
        return False
    with _given(head) as decoded:
        view.drawn(case.requests, case.sampling)
    with _given(head) as prefilled:
        own = [
            (tokens, at) for (_, at), tokens in zip(own_logits(view, case.drawn), case.drawn.sequences(), strict=True)
        ]
    states_MD = torch.cat([states[at - 1] for states, (_, at) in zip(prefilled, own, strict=True)])
    token_M1 = torch.cat([tokens[at] for tokens, at in own])[:, None]
    every = torch.cat(decoded)
    nearest_MD = every[torch.cdist(states_MD.float(), every.float()).argmin(-1)]
    here, there = (head(x).float().log_softmax(-1).gather(-1, token_M1) for x in (states_MD, nearest_MD))
    return size(there - here) < _MOST * size(off_N[case.compared])


@contextmanager
def _given(head: nn.Linear) -> Iterator[list[Tensor]]:
    """The states that a head is given, [rows, D] of each call."""
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach().flatten(0, -2).clone())

    hook = head.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()
