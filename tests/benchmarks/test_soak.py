"""A short soak: a supervised run with three faults ends in the bytes of one without, and leaves nothing behind."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.soak import KILL_RUN, KILL_SAMPLER, Outcome, compare, soak


@pytest.mark.proof
def test_a_run_with_faults_ends_as_one_without() -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the calls that fail")
    with tempfile.TemporaryDirectory() as folder:  # a short name, since sockets lie in it
        calm, stormy = soak(Path(folder) / "soak", steps=60, every=15, samplers=2)
    assert compare(calm, stormy) == []
    assert stormy.faults == {KILL_RUN: 1, errno.errorcode[errno.EIO]: 1, KILL_SAMPLER: 1}
    assert stormy.restarts >= 1
    assert len({one.descriptors for one in calm.held}) <= 2, "a file is being written now and then"


def test_what_differs_and_what_is_left_over_is_said() -> None:
    calm = Outcome(contents={"a": b"1", "b": b"2"})
    stormy = Outcome(code=1, contents={"a": b"1", "b": b"3", "c": b""}, left_over=["process 7"], faults=Counter())
    assert compare(calm, stormy) == [
        "the stormy run ended with 1",
        "b differs",
        "c differs",
        "left over: process 7",
    ]
