"""What surrounds an episode of verifiers, without that package: one that fails, too many of them, proxies."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.environments import verifiers_bridge
from lockstep.environments.verifiers_bridge import VerifiersEpisode
from lockstep.errors import InputError


class Endless:
    """An environment of verifiers whose episodes wait."""

    async def run_episode(self, task: object, context: object, on_trace: Callable[[Any], None]) -> None:
        await asyncio.sleep(60)


def test_a_taskset_that_failed_is_opened_again_for_the_next_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    async def fail(taskset: str) -> Any:
        opened.append(taskset)
        raise InputError("no port is free")

    monkeypatch.setattr(verifiers_bridge, "_open", fail)

    async def begin_two() -> None:
        for _ in range(2):
            with pytest.raises(InputError, match="no port is free"):
                await VerifiersEpisode().reset({"taskset": "double_it"}, 0)

    asyncio.run(begin_two())
    assert opened == ["double_it"] * 2


def test_more_episodes_than_verifiers_has_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_bridge, "_MOST_EPISODES", 2)

    async def begin_three() -> None:
        served = verifiers_bridge._Served(Endless(), ["task"], None, {})
        first, _ = (served.begin(0, verifiers_bridge._Calls()) for _ in range(2))
        with pytest.raises(RuntimeError, match=r"at most 2 episodes at once in one process; raise .*max_concurrency"):
            served.begin(0, verifiers_bridge._Calls())
        first.cancel()
        await asyncio.wait({first})
        await asyncio.sleep(0)
        served.begin(0, verifiers_bridge._Calls())

    asyncio.run(begin_three())


@pytest.mark.parametrize("before", ["", "example.com"])
def test_calls_to_this_machine_pass_by_a_proxy(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, before)
    verifiers_bridge._bypass_proxies()
    assert urllib.request.getproxies()["no"] == ",".join(filter(None, [before, "127.0.0.1"]))
