"""The address of a process in a meeting, where gloo listens: that by which it reaches the host."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from lockstep.distributed.meeting import RendezvousAddress

ADDRESSES = {
    one.address: name
    for name, every in psutil.net_if_addrs().items()
    for one in every[:1]
    if one.family == socket.AF_INET
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_gloo_interface_is_the_one_that_reaches_the_rendezvous_host(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = RendezvousAddress(address, 1, 0, 2, 1.0)
    assert meeting.own_address == address
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    meeting.choose_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == ADDRESSES[address]
