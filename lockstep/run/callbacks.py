"""The function of the user's program that a run calls. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

OnStep = Callable[[int, Mapping[str, float]], object]
"""Takes the number of steps done and their metrics, validation's among them; of step 0 there are
only validation's.

What it raises ends the run, after the step was logged, and saved if that was due.
"""
