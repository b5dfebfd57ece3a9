"""The user's function that a run calls. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

OnStep = Callable[[int, Mapping[str, float]], object]
"""Receives the number of finished steps and their metrics, including validation metrics.

Step 0 has only validation metrics. An exception ends the run after the step is logged, and saved if
a save was due.
"""
