"""A hook that notes, once, that responses are cut off where rewards can be negative."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.algorithms.step import StepEvent

REWARD_CUT_OFF = "reward.cut_off to a number (or to as_is: they are scored as now, without this note)"
"""The option to set if a recipe's own `reward` scores."""


class CutOffNote:
    """Notes, once, that nothing declares what a response is worth that a limit cuts off, although rewards are negative.

    Args:
        note: Shows a line that stays.
        cure: The option to set.
    """

    def __init__(self, note: Callable[[str], None], cure: str) -> None:
        self._note, self._cure = note, cure
        self._lowest, self._is_noted = 0.0, False

    def __call__(self, event: StepEvent) -> None:
        values = event.values
        self._lowest = min(self._lowest, values.get("train/reward_min", 0.0))
        paid = values.get("train/reward_cut_off")
        if self._is_noted or paid is None or self._lowest >= 0 or "train/cut_off_as_is" in values:
            return
        self._is_noted = True
        self._note(
            f"step {event.step}: rewards can be negative ({self._lowest:g}), and {values['train/truncated']:.0%} of "
            f"responses were cut off and scored as they are, {paid:.3g} on average, where all earn "
            f"{values['train/reward']:.3g}; so that being cut off does not pay, set {self._cure}"
        )
