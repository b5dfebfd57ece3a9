"""Weights that fill more than one bucket: what is taken out is what was put in, and no bucket changes while read."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lockstep.distributed.meeting import Host
from lockstep.weight_sync import transfer
from lockstep.weight_sync.sender import LocalSender
from lockstep.weight_sync.transfer import Bucket, join_group, unpack

SHAPES = {
    "odd": (5,), "scalar": (), "bf16": (7, 3), "flags": (9,), "large": (40, 40), "after": (6, 6), "larger": (60, 40),
    "last": (11,),
}  # fmt: skip
KINDS = {"bf16": torch.bfloat16, "flags": torch.bool}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_CAPACITY", 512)


def weights() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draws).to(KINDS.get(name)) for name, shape in SHAPES.items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name])


def test_buckets_are_numbered_bounded_and_whole() -> None:
    taken: dict[str, Tensor] = {}
    numbers = []
    for bucket in LocalSender().buckets(weights().items()):
        numbers.append(bucket.number)
        assert bucket.size <= 512 or len(bucket.slots) == 1
        assert all(slot.start % 64 == 0 for slot in bucket.slots)
        taken |= {name: tensor.clone() for name, tensor in unpack(Bucket.of(bucket.json()), None)}
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 4
    assert_same(taken, weights())


def test_a_bucket_stays_while_the_next_is_filled() -> None:
    taken: dict[str, Tensor] = {}
    before: Bucket | None = None
    sender = LocalSender()
    for bucket in sender.buckets(weights().items()):
        if before is not None:
            taken |= {name: tensor.clone() for name, tensor in unpack(before, None)}
        before = bucket
    assert before is not None
    assert_same(taken | {name: tensor.clone() for name, tensor in unpack(before, None)}, weights())


def test_a_group_carries_the_same() -> None:
    host, taken = Host("127.0.0.1", 2, 30.0), dict[str, Tensor]()
    sent: list[Bucket] = []
    ready = threading.Semaphore(0)

    def receive() -> None:
        own = host.meeting.of(1)
        group = join_group(own)
        while ready.acquire() and sent:
            taken.update(unpack(sent.pop(0), group))

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    sender = LocalSender()
    sender.join(host.meeting)
    for bucket in sender.buckets(weights().items()):
        sent.append(bucket)
        ready.release()
        sender.ship(bucket)
    ready.release()
    receiver.join(30.0)
    assert_same(taken, weights())


def test_a_stream_is_gone_through_as_it_is_sent() -> None:
    asked: list[str] = []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights().items():
            asked.append(name)
            yield name, tensor

    next(LocalSender().buckets(stream()))
    assert len(asked) < len(SHAPES)
