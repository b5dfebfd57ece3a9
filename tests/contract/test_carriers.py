"""The contract of carriers: what a receiver takes is what the sender wrote, and no bucket changes
while it is read.

Those that need a GPU keep it in `tests/gpu/test_carriers_on_gpus.py`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lockstep.core.errors import InputError
from lockstep.distributed.meeting import RendezvousHost
from lockstep.weight_sync import buckets
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import (
    BucketCarrier,
    SharedFiles,
    TransferKind,
    TransferRoute,
    open_carrier,
    unpack_bucket,
)
from lockstep.weight_sync.fingerprints import column_fingerprint, fingerprint_tensor
from lockstep.weight_sync.outgoing import OutgoingWeights, SentFingerprint
from lockstep.weight_sync.sender import LocalSender

SHAPES = {
    "odd": (5,), "scalar": (), "bf16": (7, 3), "flags": (9,), "large": (40, 40), "after": (6, 6), "larger": (60, 40),
    "last": (11,),
}  # fmt: skip
KINDS = {"bf16": torch.bfloat16, "flags": torch.bool}
CPU = torch.device("cpu")
Taken = dict[str, Tensor]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "CAPACITY", 512)


@dataclass
class Ends:
    """Both ends of a route; the receiver's is in a thread, since a process group waits for both."""

    sender: LocalSender
    announced: queue.SimpleQueue[WeightBucket | None]
    taken: list[Taken]
    thread: threading.Thread
    host: RendezvousHost | None
    sent: int = 0

    def send(self, bucket: WeightBucket) -> None:
        """Announces and ships a bucket, when the one before has been read."""
        self.wait()
        self.announced.put(WeightBucket.from_json(bucket.to_json()))
        self.sender.ship_bucket(bucket)
        self.sent += 1

    def wait(self) -> None:
        """Waits until all that was sent has been read."""
        while len(self.taken) < self.sent:
            assert self.thread.is_alive()
            threading.Event().wait(0.001)

    def finish(self) -> Taken:
        """All that was received."""
        self.announced.put(None)
        self.thread.join(30.0)
        assert not self.thread.is_alive()
        return {name: tensor for one in self.taken for name, tensor in one.items()}


def receive(
    carrier: BucketCarrier, announced: queue.SimpleQueue[WeightBucket | None], taken: list[Taken]
) -> None:
    while (bucket := announced.get()) is not None:
        taken.append({name: tensor.clone() for name, tensor in unpack_bucket(carrier, bucket, CPU)})


@pytest.fixture(params=["shared_memory", "process_group"])
def ends(request: pytest.FixtureRequest) -> Ends:
    transfer: TransferKind = request.param
    sender, host = (
        LocalSender(),
        RendezvousHost("127.0.0.1", 2, 30.0) if transfer == "process_group" else None,
    )
    route = TransferRoute(
        transfer, () if host else sender.file_paths, host.meeting if host else None
    )
    announced, taken = queue.SimpleQueue[WeightBucket | None](), list[Taken]()
    text = route.for_rank(1).to_json()
    thread = threading.Thread(
        target=lambda: receive(open_carrier(TransferRoute.from_json(text)), announced, taken),
        daemon=True,
    )
    thread.start()
    sender.open_route(route)
    return Ends(sender, announced, taken, thread, host)


def weights() -> Taken:
    draws = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=draws).to(KINDS.get(name))
        for name, shape in SHAPES.items()
    }


def assert_same(left: Taken, right: Taken) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name])


def test_received_tensors_equal_sent_tensors_over_every_transfer(ends: Ends) -> None:
    numbers = list[int]()
    for bucket in ends.sender.fill_buckets(
        OutgoingWeights.wrap_stream(weights().items()), columns=True
    ):
        numbers.append(bucket.number)
        assert bucket.size <= 512 or len(bucket.parts) == 1
        assert all(part.start % 64 == 0 for part in bucket.parts)
        ends.send(bucket)
    assert_same(ends.finish(), weights())
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 4


def test_bucket_contents_survive_filling_of_next_bucket(ends: Ends) -> None:
    """The receiver begins to read a bucket only when the sender has filled the next one."""
    if ends.host is not None:
        pytest.skip("a broadcast ends when all have the bytes")
    before: WeightBucket | None = None
    for bucket in ends.sender.fill_buckets(
        OutgoingWeights.wrap_stream(weights().items()), columns=False
    ):
        if before is not None:
            ends.send(before)
            ends.wait()
        before = bucket
    assert before is not None
    ends.send(before)
    assert_same(ends.finish(), weights())


def test_second_weight_transfer_with_larger_tensors_is_received(ends: Ends) -> None:
    """The second time there is more of it, so that memory has to grow."""
    more = {"more": torch.arange(3000.0)}
    for sent in ({"one": torch.ones(3)}, {"one": torch.zeros(3), **more}):
        for bucket in ends.sender.fill_buckets(
            OutgoingWeights.wrap_stream(sent.items()), columns=False
        ):
            ends.send(bucket)
    assert_same(ends.finish(), {"one": torch.zeros(3), **more})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None])
def test_sent_fingerprints_are_of_tensors_cast_to_transfer_dtype(
    ends: Ends, dtype: torch.dtype | None
) -> None:
    held = {"matrix": torch.randn(50, 30), "turned": torch.randn(4, 9).T, "count": torch.arange(7)}
    outgoing = OutgoingWeights(lambda: iter(held.items()), dtype)
    for bucket in ends.sender.fill_buckets(outgoing, columns=True):
        ends.send(bucket)
    for name, tensor in ends.finish().items():
        assert tensor.dtype == (
            dtype if held[name].is_floating_point() and dtype is not None else held[name].dtype
        )
        columns = column_fingerprint(tensor) if tensor.ndim == 2 else None
        assert outgoing.sent_fingerprints[name] == SentFingerprint(
            fingerprint_tensor(tensor), columns
        )


def test_weight_stream_is_read_lazily_while_buckets_are_sent() -> None:
    asked: list[str] = []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights().items():
            asked.append(name)
            yield name, tensor

    sender = LocalSender()
    sender.open_route(TransferRoute("shared_memory", sender.file_paths))
    next(sender.fill_buckets(OutgoingWeights.wrap_stream(stream()), columns=False))
    assert len(asked) < len(SHAPES)


def test_shared_memory_files_are_removed_with_their_owner() -> None:
    files = SharedFiles()
    assert len(set(files.file_paths)) == 2
    for place in files.file_paths:
        with open(place, "r+b"):
            pass
    places = files.file_paths
    del files
    for place in places:
        with pytest.raises(FileNotFoundError):
            open(place, "r+b").close()


@pytest.mark.parametrize(
    ("carrier", "what"),
    [
        (lambda: TransferRoute("cuda_ipc"), "sampler.transfer=cuda_ipc"),
        (
            lambda: TransferRoute(
                "process_group", meeting=RendezvousHost("127.0.0.1", 1, 5.0).meeting, backend="nccl"
            ),
            "NCCL",
        ),
    ],
)
def test_gpu_only_transfer_is_refused_by_name_without_gpu(
    carrier: Callable[[], TransferRoute], what: str
) -> None:
    with pytest.raises(InputError, match=f"{what} .*torch sees none here"):
        open_carrier(carrier())
