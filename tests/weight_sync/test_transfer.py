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
from lockstep.weight_sync.transfer import Bucket, Inbox

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
    numbers, inbox = [], Inbox()
    for bucket in LocalSender().buckets(weights().items()):
        numbers.append(bucket.number)
        assert bucket.size <= 512 or len(bucket.slots) == 1
        assert all(slot.start % 64 == 0 for slot in bucket.slots)
        taken |= {name: tensor.clone() for name, tensor in inbox.unpack(Bucket.of(bucket.json()))}
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 4
    assert_same(taken, weights())


def test_a_bucket_stays_while_the_next_is_filled() -> None:
    taken: dict[str, Tensor] = {}
    before: Bucket | None = None
    sender, inbox = LocalSender(), Inbox()
    for bucket in sender.buckets(weights().items()):
        if before is not None:
            taken |= {name: tensor.clone() for name, tensor in inbox.unpack(before)}
        before = bucket
    assert before is not None
    assert_same(taken | {name: tensor.clone() for name, tensor in inbox.unpack(before)}, weights())


def test_a_group_carries_the_same() -> None:
    host, taken = Host("127.0.0.1", 2, 30.0), dict[str, Tensor]()
    sent: list[Bucket] = []
    ready = threading.Semaphore(0)

    def receive() -> None:
        inbox = Inbox()
        inbox.join(host.meeting.of(1))
        while ready.acquire() and sent:
            taken.update(inbox.unpack(sent.pop(0)))

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


def test_memory_that_another_sender_has_under_the_same_path_is_mapped_anew() -> None:
    """A new sender in the same process gets the numbers of files that an older one has given back."""
    inbox, places = Inbox(), set[str]()
    for scale in (1.0, 2.0, 3.0):
        sender = LocalSender()
        (bucket,) = sender.buckets([("one", torch.full((3,), scale))])
        places.add(bucket.place)
        assert dict(inbox.unpack(bucket))["one"].tolist() == [scale] * 3
        del sender
    assert len(places) == 1


def test_memory_that_has_grown_is_mapped_whole() -> None:
    inbox, sender = Inbox(), LocalSender()
    for size in (3, 4000):
        (bucket,) = sender.buckets([("one", torch.arange(size))])
        assert torch.equal(dict(inbox.unpack(bucket))["one"], torch.arange(size))
