"""Rendezvous of processes: one hosts a store, and the others receive its address.

The host listens on the given address only, and gloo on the address from which a process reaches the
host: by default gloo uses the address of the host's name, which on many machines is loopback,
unreachable from other machines.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable by which gloo, and the user, choose a network interface."""

_GET_ADDRESS = 0x8915
"""Linux's ioctl for the address of a network interface."""


@dataclass(frozen=True)
class RendezvousAddress:
    """The store's address, and this process's rank among `size`."""

    host: str
    port: int
    rank: int
    size: int
    timeout_s: float

    @property
    def collective_timeout(self) -> timedelta:
        """Timeout of a collective."""
        return timedelta(seconds=self.timeout_s)

    def open_store(self) -> TCPStore:
        """Connects to the host's store."""
        return TCPStore(self.host, self.port, is_master=False, timeout=self.collective_timeout)

    @property
    def own_address(self) -> str:
        """Address from which this process reaches the host."""
        (family, *_), *_ = socket.getaddrinfo(self.host, self.port)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, self.port))
            return str(probe.getsockname()[0])

    def choose_interface(self) -> None:
        """Makes all gloo groups of this process listen on an address that others can reach."""
        address = self.own_address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _, name in socket.if_nameindex():
                if _find_address(asking, name) == address:
                    os.environ.setdefault(_GLOO_INTERFACE, name)
                    break

    def join_gloo(self) -> dist.ProcessGroupGloo:
        """Joins a group separate from torch's default group."""
        gloo: Any = dist.ProcessGroupGloo
        chosen = os.environ.get(_GLOO_INTERFACE)
        options = gloo._Options()
        options._timeout = self.collective_timeout
        if chosen is None:
            options._devices = [gloo.create_device(hostname=self.own_address)]
        else:
            options._devices = [gloo.create_device(interface=chosen)]
        return gloo(self.open_store(), self.rank, self.size, options)

    def for_rank(self, rank: int) -> RendezvousAddress:
        """The same store for a different rank."""
        return replace(self, rank=rank)


class RendezvousHost:
    """The host's side: holds the store as long as it lives.

    Args:
        address: Address to listen on; all ranks must be able to reach it.
        size: Number of processes.
        timeout_s: Timeout of a collective.

    Attributes:
        meeting: Meeting of rank 0.
    """

    def __init__(self, address: str, size: int, timeout_s: float) -> None:
        # a store's own socket would listen on all interfaces
        with socket.create_server((address, 0)) as listening:
            self.meeting = RendezvousAddress(
                address, listening.getsockname()[1], 0, size, timeout_s
            )
            descriptor = listening.detach()
        self.store = TCPStore(
            address,
            self.meeting.port,
            is_master=True,
            timeout=self.meeting.collective_timeout,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )


def _find_address(asking: socket.socket, interface: str) -> str | None:
    """The IPv4 address of a network interface; None if it has none."""
    try:
        answer = fcntl.ioctl(asking, _GET_ADDRESS, struct.pack("256s", interface.encode()))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
