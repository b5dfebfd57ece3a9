"""The held-out faults: written by a fifth hand, which had seen no rule of the doctor."""

from __future__ import annotations

from lockstep.doctor.selftest.fault import Fault

HELD_OUT: tuple[Fault, ...] = ()
