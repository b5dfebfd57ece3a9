"""The fault policy: its table, the waits and words of `RetryCounter`, and that nothing tries again
beside it.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import lockstep
from lockstep.system.fault_policy import POLICY, FaultSource, RateLimitedNote, RetryCounter

SLEEPERS = {
    "system/fault_policy.py": "the policy itself",
    "helpers/process.py": "looks for a parent that has ended",
    "helpers/descendants.py": "looks for children that have ended",
    "weight_sync/carriers.py": (
        "looks whether a receiver still takes what is sent, until a deadline"
    ),
}
"""Files that wait by the clock, and what for."""


def test_every_fault_source_has_a_policy_that_is_used() -> None:
    assert set(POLICY) == set(get_args(FaultSource))
    sources = "\n".join(path.read_text() for path in Path(lockstep.__file__).parent.rglob("*.py"))
    used = set(re.findall(r"""(?:RetryCounter\(|POLICY\[)"(\w+)\"""", sources))
    assert used == set(POLICY)


def test_only_listed_files_sleep_or_retry() -> None:
    folder = Path(lockstep.__file__).parent
    waiting = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(
            r"\btime\.sleep\b|\banyio\.sleep\b|\basyncio\.sleep\b|for attempt\b", path.read_text()
        )
    }
    assert waiting == {*SLEEPERS, "servers/json_server.py"}
    client = (folder / "servers/json_server.py").read_text()
    assert client.count("anyio.sleep") == client.count("RetryCounter(") == 1


def test_retry_waits_grow_to_last_value_and_end_at_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        POLICY, "worker", replace(POLICY["worker"], waits_s=(0.0, 1.0, 5.0), limit=4)
    )
    told: list[str] = []
    attempts = RetryCounter("worker", told.append)
    assert [attempts.next_wait("it fell") for _ in range(5)] == [0.0, 1.0, 5.0, 5.0, None]
    assert told == [
        "it fell; resuming from the newest checkpoint (1 of 4 times)",
        "it fell; resuming from the newest checkpoint in 1 s (2 of 4 times)",
        "it fell; resuming from the newest checkpoint in 5 s (3 of 4 times)",
        "it fell; resuming from the newest checkpoint in 5 s (4 of 4 times)",
    ]


def test_retry_limit_0_disables_retries_and_no_limit_retries_endlessly() -> None:
    assert RetryCounter("worker", limit=0).next_wait() is None
    assert not RetryCounter("worker", limit=0).wait_for_retry("lost")
    told: list[str] = []
    endless = RetryCounter("server", told.append)
    assert [endless.next_wait("away") for _ in range(9)][-2:] == [30.0, 30.0]
    assert told[0] == "away; asking again in 0.5 s"


def test_rate_limited_note_is_written_first_and_again_after_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    seldom = RateLimitedNote(told.append)
    for text in ("first", "second"):
        seldom(text)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 60.0)
    seldom("third")
    assert told == ["first", "third"]
