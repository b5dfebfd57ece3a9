"""Moves device memory to the host and back, while every tensor, view and alias stays valid.

A tensor's storage is emptied once its bytes are on the host, and filled again later; parameters,
pieces of FSDP, parameters of an optimizer and tied weights need no change. On CUDA the host's
memory is pinned, so that copies are asynchronous; it is kept for the next time, since pinning is
slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lockstep.models.device import empty_cache

_CHUNK = 1 << 26
"""Bytes per allocation of host memory; a power of two, to which torch rounds pinned memory up."""


@dataclass(frozen=True)
class _StoragePlace:
    """The memory of a storage, and its location on the host.

    Attributes:
        flat: The full storage, as bytes.
        size: Size in bytes.
        start: Offset of its first byte on the host, counted over all chunks.
    """

    flat: Tensor
    size: int
    start: int


class HostMemory:
    """Host copies of tensors that are offloaded from a device.

    Args:
        device: The device; tensors elsewhere are left alone.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chunks: list[Tensor] = []
        self._places: dict[StorageWeakRef, _StoragePlace] = {}
        self._away: dict[StorageWeakRef, _StoragePlace] = {}

    @torch.no_grad()
    def offload_tensors(self, tensors: Iterable[Tensor], frozen: bool = False) -> None:
        """Copies the full storages of tensors to the host, and frees them on the device.

        Args:
            tensors: The tensors.
            frozen: Whether the tensors never change, so that existing host copies are reused.
        """
        leaving: dict[StorageWeakRef, Tensor] = {}
        for tensor in tensors:
            key = _make_storage_key(tensor)
            is_here = tensor.device.type == self._device.type and key not in self._away
            if is_here and tensor.numel():
                leaving[key] = tensor
        for key, tensor in leaving.items():
            is_copied = frozen and key in self._places
            if key not in self._places:
                size = tensor.untyped_storage().nbytes()
                count = size // tensor.element_size()
                flat = tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)
                last = next(reversed(self._places.values()), None)
                start = 0 if last is None else last.start + last.size
                self._places[key] = _StoragePlace(flat, size, start)
            if not is_copied:
                for own, host in self._pair_chunks(self._places[key]):
                    host.copy_(own, non_blocking=True)
            self._away[key] = self._places[key]
        if not leaving:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for key in leaving:
            _resize_storage(self._away[key].flat, 0)
        empty_cache(self._device)

    @torch.no_grad()
    def reload_tensors(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Moves the memory of these tensors, or of all, back to the device if needed."""
        if not self._away:
            return
        if tensors is None:
            keys = list(self._away)
        else:
            keys = list(map(_make_storage_key, tensors))
        for key in keys:
            if key in self._away:
                self._reload_place(self._away.pop(key))

    @contextmanager
    def lend_tensors(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Makes tensors readable on the device; afterwards frees the offloaded ones there again."""
        keys = set(map(_make_storage_key, tensors)) & self._away.keys()
        with torch.no_grad():
            for key in keys:
                self._reload_place(self._away[key])
        try:
            yield
        finally:
            for key in keys & self._away.keys():  # except tensors that were reloaded meanwhile
                _resize_storage(self._away[key].flat, 0)

    def is_offloaded(self, tensor: Tensor) -> bool:
        """True if a tensor is offloaded, even while a copy is on the device."""
        return bool(self._away) and _make_storage_key(tensor) in self._away

    def reload_and_reset(self) -> None:
        """Moves everything back, and resets host memory; later offloads start at its beginning."""
        self.reload_tensors()
        self._places.clear()

    def _pair_chunks(self, stretch: _StoragePlace) -> Iterator[tuple[Tensor, Tensor]]:
        """Bytes on the device and their location on the host, chunk by chunk."""
        done = 0
        while done < stretch.size:
            number, start = divmod(stretch.start + done, _CHUNK)
            size = min(_CHUNK - start, stretch.size - done)
            while number >= len(self._chunks):
                self._chunks.append(
                    torch.empty(_CHUNK, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
                )
            yield stretch.flat[done : done + size], self._chunks[number][start : start + size]
            done += size

    def _reload_place(self, stretch: _StoragePlace) -> None:
        _resize_storage(stretch.flat, stretch.size)
        for own, host in self._pair_chunks(stretch):
            own.copy_(host, non_blocking=True)


def _make_storage_key(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _resize_storage(flat: Tensor, size: int) -> None:
    flat.untyped_storage().resize_(size)
