"""Carriers send the bytes of buckets to other processes.

Sender and receivers open the same `TransferRoute`.

The bytes are in memory that both sides map, on the host or a GPU, or are broadcast in a process
group.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, assert_never, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.core.errors import InputError
from lockstep.distributed.meeting import RendezvousAddress
from lockstep.weight_sync.buckets import CAPACITY, BucketPart, WeightBucket, count_aligned_bytes

TransferKind = Literal["shared_memory", "process_group", "cuda_ipc"]

BUFFERS = 2
"""Number of buffers, filled in turn."""


@dataclass(frozen=True)
class TransferRoute:
    """A carrier and its meeting point; a sender and its receivers open the same route.

    Attributes:
        transfer: Kind of carrier.
        paths: Files of shared memory.
        meeting: Meeting of a process group; rank 0 sends.
        backend: Backend of the process group; NCCL if every process has its own GPU.
    """

    transfer: TransferKind
    paths: tuple[str, ...] = ()
    meeting: RendezvousAddress | None = None
    backend: Literal["gloo", "nccl"] = "gloo"

    def for_rank(self, rank: int) -> TransferRoute:
        """The same route for another rank of the process group."""
        if self.meeting is None:
            return self
        return replace(self, meeting=self.meeting.for_rank(rank))

    def has_same_carrier(self, other: TransferRoute) -> bool:
        """True if both use the same carrier."""
        return (self.transfer, self.backend) == (other.transfer, other.backend)

    def for_host_weights(self, one_machine: bool) -> TransferRoute:
        """A route for weights in host memory, which neither CUDA IPC nor NCCL can read."""
        if self.is_between_gpus:
            return TransferRoute("shared_memory" if one_machine else "process_group")
        return self

    @property
    def is_between_gpus(self) -> bool:
        """True if the sender's and the receivers' weights are on GPUs."""
        match self.transfer:
            case "cuda_ipc":
                return True
            case "process_group":
                return self.backend == "nccl"
            case "shared_memory":
                return False
            case _:
                assert_never(self.transfer)

    def to_json(self) -> str:
        """JSON, for engines that accept only plain values."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TransferRoute:
        """Parses the output of `to_json`."""
        fields = json.loads(text)
        meeting = fields.pop("meeting")
        fields["paths"] = tuple(fields["paths"])
        return cls(**fields, meeting=None if meeting is None else RendezvousAddress(**meeting))


class BucketCarrier(ABC):
    """One end of a route. Senders call `bucket_memory`, `seal_bucket`, `ship_bucket`; receivers
    `receive_bytes`, `wait_until_read`.
    """

    @abstractmethod
    def bucket_memory(self, number: int, size: int, device: torch.device) -> Tensor:
        """Memory for the next bucket, uint8 [size]; the previous bucket's bytes stay valid.

        Args:
            number: Number of the bucket.
            size: Size in bytes.
            device: Device of the weights.
        """

    @abstractmethod
    def seal_bucket(self, number: int, parts: tuple[BucketPart, ...]) -> WeightBucket:
        """The bucket whose bytes were written to `bucket_memory`; the caller passes it to
        receivers.
        """

    def ship_bucket(self, bucket: WeightBucket) -> None:  # noqa: B027 — in shared memory, receivers see what was written
        """Sends the newest bucket's bytes to receivers that were passed it; returns when done."""

    @abstractmethod
    def receive_bytes(self, bucket: WeightBucket, device: torch.device) -> Tensor:
        """A bucket's bytes on the receiver's device. They may change after `wait_until_read`."""

    def wait_until_read(self) -> None:  # noqa: B027 — copies from host memory are finished when they are used
        """Waits until the last received bytes have been read."""


def open_carrier(route: TransferRoute) -> BucketCarrier:
    """Opens an end of a route; in a process group, waits for all other processes."""
    match route.transfer:
        case "shared_memory":
            return SharedMemory(route.paths)
        case "process_group":
            assert route.meeting is not None, "both ends of a process group join"
            return GroupBroadcast(route.meeting, route.backend)
        case "cuda_ipc":
            return CudaIPC()
        case _:
            assert_never(route.transfer)


def unpack_bucket(
    carrier: BucketCarrier, bucket: WeightBucket, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Yields names and tensors of a bucket. The tensors may change once all have been yielded."""
    flat = carrier.receive_bytes(bucket, device)
    for part in bucket.parts:
        yield part.name, part.view_in(flat)
    carrier.wait_until_read()


class SharedFiles:
    """Memory that other processes open by path; freed when the last process closes it."""

    @property
    def file_paths(self) -> tuple[str, ...]:
        """The paths of two files, created on first use."""
        return self._created_paths

    @cached_property
    def _created_paths(self) -> tuple[str, ...]:
        paths = list[str]()
        for _ in range(BUFFERS):
            descriptor = os.memfd_create("lockstep-weights")
            weakref.finalize(self, os.close, descriptor)
            paths.append(f"/proc/{os.getpid()}/fd/{descriptor}")
        return tuple(paths)


class _DoubleBuffer:
    """Two buffers for buckets in turn, kept for the next weight sync."""

    def __init__(self) -> None:
        self._kept = dict[int, Tensor]()

    def full_buffer(self, number: int, size: int, device: torch.device) -> Tensor:
        """The full buffer for a bucket, which has at least `size` bytes."""
        buffer = number % BUFFERS
        if (
            buffer not in self._kept
            or len(self._kept[buffer]) < size
            or self._kept[buffer].device != device
        ):
            self._kept[buffer] = torch.empty(max(size, CAPACITY), dtype=torch.uint8, device=device)
        return self._kept[buffer]

    def bucket_memory(self, number: int, size: int, device: torch.device) -> Tensor:
        return self.full_buffer(number, size, device)[:size]


class _ThroughHost(BucketCarrier):
    """Base of host-memory carriers: fills a bucket on the weights' GPU, then copies it once."""

    def __init__(self) -> None:
        self._buffers = _DoubleBuffer()
        self._stages = _DoubleBuffer()
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._staged = self._sent

    def _stage_bucket(self, number: int, sent: Tensor, device: torch.device) -> Tensor:
        """Memory to fill for a bucket: `sent` itself, or a buffer on the tensors' device."""
        self._sent = self._staged = sent
        if device.type != sent.device.type:
            self._staged = self._stages.bucket_memory(number, len(sent), device)
        return self._staged

    def seal_bucket(self, number: int, parts: tuple[BucketPart, ...]) -> WeightBucket:
        if self._staged is not self._sent:
            self._sent.copy_(self._staged)
        return WeightBucket(number, count_aligned_bytes(parts), parts)


class SharedMemory(_ThroughHost):
    """Carries buckets in two shared-memory files: one is filled while the other is read.

    Several processes may write parts of the same bucket; then each of them seals it.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__()
        self._paths = paths
        self._mapped = dict[str, Tensor]()

    def bucket_memory(self, number: int, size: int, device: torch.device) -> Tensor:
        return self._stage_bucket(number, self._map_file(number, size), device)

    def receive_bytes(self, bucket: WeightBucket, device: torch.device) -> Tensor:
        return self._map_file(bucket.number, bucket.size).to(device)

    def _map_file(self, number: int, size: int) -> Tensor:
        """The first `size` bytes of a bucket's file, which grows if it is too small."""
        path = self._paths[number % len(self._paths)]
        if path not in self._mapped or len(self._mapped[path]) < size:
            with open(path, "r+b") as file:
                if os.fstat(file.fileno()).st_size < size:
                    os.ftruncate(file.fileno(), max(size, CAPACITY))
                self._mapped[path] = torch.frombuffer(
                    mmap.mmap(file.fileno(), 0), dtype=torch.uint8
                )
        return self._mapped[path][:size]


class GroupBroadcast(_ThroughHost):
    """Carries buckets by broadcasts in a process group separate from torch's default group."""

    def __init__(self, meeting: RendezvousAddress, backend: Literal["gloo", "nccl"]) -> None:
        super().__init__()
        self._group = _join_group(meeting, backend)
        self._on_gpu = backend == "nccl"
        self._timeout_s = meeting.timeout_s

    def bucket_memory(self, number: int, size: int, device: torch.device) -> Tensor:
        return self._stage_bucket(
            number,
            self._buffers.bucket_memory(number, size, device if self._on_gpu else _HOST),
            device,
        )

    def ship_bucket(self, bucket: WeightBucket) -> None:
        work = self._group.broadcast([self._sent], _FROM_SENDER)
        if self._on_gpu:
            # A CUDA stream that waits for a dead receiver would block until this process ends.
            end = time.monotonic() + self._timeout_s
            while not work.is_completed():
                if time.monotonic() > end:
                    self._group.abort()
                    raise RuntimeError(
                        f"bucket {bucket.number} did not reach all engines within "
                        f"{self._timeout_s:g} s"
                    )
                time.sleep(_POLL_S)
        work.wait()

    def receive_bytes(self, bucket: WeightBucket, device: torch.device) -> Tensor:
        flat = self._buffers.bucket_memory(
            bucket.number, bucket.size, device if self._on_gpu else _HOST
        )
        self._group.broadcast([flat], _FROM_SENDER).wait()
        # the next bucket goes to the other buffer, on a GPU in stream order after these reads
        return flat.to(device)


_HOST = torch.device("cpu")
_POLL_S = 2e-4
_WATCHDOG_WAITS_LONGER_S = 60.0
"""Seconds after the sender's deadline when NCCL's watchdog would end the sender's process."""
_FROM_SENDER = dist.BroadcastOptions()
_FROM_SENDER.rootRank = 0


def _join_group(own: RendezvousAddress, backend: Literal["gloo", "nccl"]) -> dist.ProcessGroup:
    if backend == "gloo":
        group = own.join_gloo()
    else:
        _require_gpu("the backend NCCL")
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = own.collective_timeout + timedelta(seconds=_WATCHDOG_WAITS_LONGER_S)
        group = dist.ProcessGroupNCCL(own.open_store(), own.rank, own.size, options)
    return cast("dist.ProcessGroup", group)  # it has the same methods


class CudaIPC(BucketCarrier):
    """Carries buckets in memory of a GPU that both ends share, without copying.

    If several processes send, each fills memory of its own GPU, and one bucket has the handles of
    all.
    """

    def __init__(self) -> None:
        _require_gpu("sampler.transfer=cuda_ipc")
        self._buffers = _DoubleBuffer()
        self._device = torch.device("cuda")
        self._exported = dict[int, tuple[Tensor, str]]()
        self._opened = dict[int, tuple[Tensor, str]]()

    def bucket_memory(self, number: int, size: int, device: torch.device) -> Tensor:
        if device.type != "cuda":
            raise InputError(
                f"sampler.transfer=cuda_ipc needs weights on a GPU, but these are on {device}"
            )
        self._device = device
        buffer = number % BUFFERS
        full = self._buffers.full_buffer(number, size, device)
        if buffer not in self._exported or self._exported[buffer][0] is not full:
            self._exported[buffer] = full, _export_handle(full)
        return full[:size]

    def seal_bucket(self, number: int, parts: tuple[BucketPart, ...]) -> WeightBucket:
        # streams of this process do not order another process's reads
        torch.cuda.synchronize(self._device)
        _, handle = self._exported[number % BUFFERS]
        return WeightBucket(
            number, count_aligned_bytes(parts), parts, {name_gpu(self._device): handle}
        )

    def receive_bytes(self, bucket: WeightBucket, device: torch.device) -> Tensor:
        self._device = device
        name = name_gpu(device)
        if name not in bucket.handles:
            raise InputError(
                f"sampler.transfer=cuda_ipc needs a learner rank on each engine's GPU, and {name} "
                f"has none (ranks are on {', '.join(sorted(bucket.handles)) or 'no GPU'}); use "
                "sampler.transfer=process_group"
            )
        handle = bucket.handles[name]
        buffer = bucket.number % BUFFERS
        if buffer not in self._opened or self._opened[buffer][1] != handle:
            self._opened[buffer] = _open_exported(handle, device), handle
        return self._opened[buffer][0][: bucket.size]

    def wait_until_read(self) -> None:
        torch.cuda.synchronize(self._device)


def name_gpu(device: torch.device) -> str:
    """The name of a GPU, the same in every process of its machine."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _require_gpu(what: str) -> None:
    if not torch.cuda.is_available():
        raise InputError(f"{what} needs GPUs, but torch sees none here; use shared_memory")


def _export_handle(flat: Tensor) -> str:
    """A handle by which another process opens a tensor's memory."""
    _, *fields = flat.untyped_storage()._share_cuda_()
    return json.dumps(
        [base64.b64encode(one).decode() if isinstance(one, bytes) else one for one in fields]
    )


def _open_exported(handle: str, device: torch.device) -> Tensor:
    """Memory that another process exported, with this process's device number."""
    fields = [base64.b64decode(one) if isinstance(one, str) else one for one in json.loads(handle)]
    storage = torch.UntypedStorage._new_shared_cuda(torch.device(device).index or 0, *fields)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(cast("Any", storage))
