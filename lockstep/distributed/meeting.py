"""Rendezvous of processes: one of them hosts a store, and the others are given its address.

The host listens on the given address only.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore


@dataclass(frozen=True)
class Meeting:
    """The address of the store, and this process's rank among `size`."""

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float

    @property
    def timeout(self) -> timedelta:
        """Timeout of a collective."""
        return timedelta(seconds=self.timeout_s)

    def store(self) -> TCPStore:
        """Connects to the host's store."""
        return TCPStore(self.host, self.port, is_master=False, timeout=self.timeout)

    def of(self, rank: int) -> Meeting:
        """Returns the same for another rank."""
        return replace(self, rank=rank)


class Host:
    """The host's side: it holds the store for as long as it lives.

    Args:
        address: Address to listen on; all ranks must be able to reach it.
        size: Number of processes.
        timeout_s: Timeout of a collective.

    Attributes:
        meeting: The meeting of rank 0.
    """

    def __init__(self, address: str, size: int, timeout_s: float) -> None:
        with socket.create_server((address, 0)) as listening:  # a store's own socket would listen to the whole network
            self.meeting = Meeting(address, listening.getsockname()[1], 0, size, timeout_s)
            descriptor = listening.detach()
        self.store = TCPStore(
            address,
            self.meeting.port,
            is_master=True,
            timeout=self.meeting.timeout,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
