"""Ranks that fill buckets together: what none of them wrote is not attested, however equal it looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import SECTION
from torch import Tensor

from lockstep.cluster.learner_group import RankSender
from lockstep.learners.sending import SendsWeights
from lockstep.weight_sync import buckets
from lockstep.weight_sync.buckets import Bucket, WeightPart
from lockstep.weight_sync.carriers import Route, open_carrier, unpack
from lockstep.weight_sync.outgoing import Outgoing
from lockstep.weight_sync.sync import WeightSyncError

ROWS = {"a.weight": 6, "b.weight": 4}


class HalfRank(SendsWeights):
    """A rank that has half of the rows of each tensor, or, by a fault, other rows."""

    def __init__(self, rank: int, silent: tuple[str, ...] = (), greedy: tuple[str, ...] = ()) -> None:
        self._ranks: Any = SimpleNamespace(number=rank, count=2)
        self.device, self.value = torch.device("cpu"), 1.0
        self._silent, self._greedy = silent, greedy

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def parts(self, dtype: torch.dtype) -> Iterator[WeightPart]:
        for name, rows in ROWS.items():
            whole = torch.arange(rows * 3.0).view(rows, 3) * self.value
            start = 0 if name in self._greedy else self._ranks.number * rows // 2
            part = whole if name in self._greedy else whole[start : start + rows // 2]
            made = WeightPart(name, dtype, (rows, 3), (start, 0), part)
            yield replace(made, numbers=None) if name in self._silent else made


class TwoRanks:
    """The part of a learner over ranks that a sender uses, with its ranks in this process."""

    def __init__(self, ranks: tuple[HalfRank, HalfRank]) -> None:
        self.ranks, self.section, self.one_machine = ranks, SECTION, True
        self.sender: Any = RankSender(self)  # type: ignore[arg-type]

    def call_all(self, verb: str, *args: Any) -> list[Any]:
        return [getattr(rank, verb)(*args) for rank in self.ranks]


def send(learner: TwoRanks, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What a receiver reads."""
    sender = learner.sender
    route = Route("shared_memory", sender.places)
    learner.call_all("join_receivers", route)
    carrier, held = open_carrier(route), dict[str, Tensor]()
    for bucket in sender.buckets(Outgoing(learner.ranks[0].weights, dtype, sender), columns=True):
        assert Bucket.read(bucket.json()) == bucket
        held |= {name: tensor.clone() for name, tensor in unpack(carrier, bucket, torch.device("cpu"))}
    return held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capacity", [buckets.CAPACITY, 64])
def test_halves_become_whole(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capacity: int) -> None:
    monkeypatch.setattr(buckets, "CAPACITY", capacity)
    held = send(TwoRanks((HalfRank(0), HalfRank(1))), dtype)
    for name, rows in ROWS.items():
        assert torch.equal(held[name], torch.arange(rows * 3.0).view(rows, 3).to(dtype))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            (HalfRank(0), HalfRank(1, silent=("b.weight",))),
            r"b\.weight has 48 bytes to send, and the learner's ranks wrote 24 \(rank 0 wrote 24, rank 1 wrote 0\)",
        ),
        (
            (HalfRank(0, silent=("a.weight",)), HalfRank(1)),
            r"a\.weight has 72 bytes .* \(rank 0 wrote 0, rank 1 wrote 36",
        ),
        ((HalfRank(0, silent=("a.weight",)), HalfRank(1, silent=("a.weight",))), r"a\.weight .* wrote 0 \(rank 0"),
        (
            (HalfRank(0), HalfRank(1, greedy=("a.weight",))),
            r"a\.weight .* wrote 108 \(rank 0 wrote 36, rank 1 wrote 72",
        ),
    ],
    ids=["second silent", "first silent", "both silent", "twice"],
)
def test_a_rank_that_writes_nothing_or_too_much_is_named(ranks: tuple[HalfRank, HalfRank], message: str) -> None:
    learner = TwoRanks((HalfRank(0), HalfRank(1)))
    send(learner)  # leaves old bytes, which would be attested as equal
    learner.ranks = ranks
    with pytest.raises(WeightSyncError, match=message):
        send(learner)
    assert all(rank._leaving is None for rank in ranks), "the sync was abandoned on all ranks"
