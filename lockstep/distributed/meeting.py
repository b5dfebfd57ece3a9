"""How processes find each other: one of them hosts a store, the others are told where it is.

The host listens where it is told to, and nowhere else.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore


@dataclass(frozen=True)
class Meeting:
    """Where a process finds the others, and who it is among how many."""

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float

    @property
    def timeout(self) -> timedelta:
        """Of a collective."""
        return timedelta(seconds=self.timeout_s)

    def store(self) -> TCPStore:
        """A connection to the host's."""
        return TCPStore(self.host, self.port, is_master=False, timeout=self.timeout)

    def of(self, rank: int) -> Meeting:
        """The same for another."""
        return replace(self, rank=rank)


class Host:
    """Holds the store for as long as it lives.

    Args:
        address: To listen on; who is to come must be able to reach it.
        size: How many meet.
        timeout_s: Of a collective.

    Attributes:
        meeting: For rank 0.
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
