"""A hook that warns when one of the known ways of collapse of a self-rewarding model begins."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.algorithms.self_rewarding.options import SelfRewardingSection
from lockstep.algorithms.step import StepEvent


class Collapse:
    """Notes, once per stretch of steps, that a share is above the recipe's limit.

    Args:
        options: The limits.
        note: Shows a line that stays.
    """

    def __init__(self, options: SelfRewardingSection, note: Callable[[str], None]) -> None:
        self._alarms = {
            "train/top_class_share": (
                options.max_class_share,
                "of the verdicts are one and the same score (self_rewarding.max_class_share); a judge that says one "
                "thing to everything teaches nothing: stop, and begin again from an earlier checkpoint with a higher "
                "ref_policy_kl_penalty, a lower learning rate or fewer judge pairs",
            ),
            "train/leaks": (
                options.max_leak_share,
                "of the answers hold a verdict, as judgements do (self_rewarding.max_leak_share); a judge that has "
                "never seen such answers may reward them: look at samples.jsonl, and lower the learning rate or the "
                "steps of an iteration, or raise sft_loss_weight",
            ),
        }
        self._note = note
        self._above: set[str] = set()

    def __call__(self, event: StepEvent) -> None:
        for metric, (limit, warning) in self._alarms.items():
            share = event.values.get(metric, 0.0)
            if share > limit and metric not in self._above:
                self._note(f"at step {event.step} {share:.0%} {warning}")
            (self._above.add if share > limit else self._above.discard)(metric)
