"""The held-out faults: written by a hand which had seen no rule of the doctor."""

from lockstep.doctor.selftest.fault import Fault

HELD_OUT: tuple[Fault, ...] = ()
