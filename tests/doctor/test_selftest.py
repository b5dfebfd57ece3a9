"""`lockstep doctor selftest`: each fault is in its place, and a fault in another place counts as wrong."""

from __future__ import annotations

import pytest

from lockstep import exit_codes
from lockstep.cli import main
from lockstep.doctor import selftest


def test_every_fault_is_located(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "selftest"]) == exit_codes.OK
    assert "\n14 of 14 cases are right" in capsys.readouterr().out


def test_a_fault_elsewhere_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name, _, path, change = next(fault for fault in selftest.FAULTS if fault[1] == "router")
    monkeypatch.setattr(selftest, "FAULTS", ((name, "down", path, change),))
    assert main(["doctor", "selftest", "--seed", "3"]) == exit_codes.BROKEN
    said = capsys.readouterr().out
    assert "| the router has other weights | down | router | WRONG |" in said
    assert "2 of 3 cases are right" in said
