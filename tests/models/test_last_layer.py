"""The last layer computes only states that are read, to the same bits where the model is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, ragged
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.models.exact.model import make_exact
from lockstep.models.heads import LogitsHead
from lockstep.models.load import load_causal_lm

PLAIN = [name for name in ARCHITECTURES if name != "gpt neox"]
BATCH = ragged((7, 12, 3, 16))


def layers_of(head: LogitsHead) -> Any:
    backbone: Any = head.lm.base_model
    return backbone.layers


def head_of(folder: Path, exact: bool) -> LogitsHead:
    head = LogitsHead(load_causal_lm(folder)).eval()
    if exact:
        make_exact(head.lm)
    return head


def score_whole(head: LogitsHead, batch: Batch) -> Tensor:
    """Log-probabilities by all states of the last layer."""
    layer = layers_of(head)[-1]
    plain = type(layer).forward

    def compute_all(hidden: Tensor, *, read: Tensor, **others: Any) -> Tensor:
        return plain(layer, hidden, **others).index_select(1, read)

    ours = vars(layer).pop("forward")
    vars(layer)["forward"] = compute_all
    try:
        logprob = head(batch).logprob
    finally:
        vars(layer)["forward"] = ours
    assert logprob is not None
    return logprob


@pytest.mark.parametrize("architecture", PLAIN)
def test_skipping_unread_positions_in_last_layer_keeps_exact_logprob_bits(
    models: Callable[..., Path], architecture: str
) -> None:
    head = head_of(models(architecture), exact=True)
    with torch.no_grad():
        assert torch.equal(head(BATCH).logprob, score_whole(head, BATCH))


@pytest.mark.parametrize("architecture", PLAIN)
def test_skipping_unread_positions_in_last_layer_keeps_gradients(
    models: Callable[..., Path], architecture: str
) -> None:
    head = head_of(models(architecture), exact=False).double()
    found: list[list[Tensor]] = []
    for logprob in (head(BATCH).logprob, score_whole(head, BATCH)):
        assert logprob is not None
        found.append(
            list(torch.autograd.grad((BATCH["advantage"] * logprob).sum(), list(head.parameters())))
        )
    for ours, whole in zip(*found, strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-6)
