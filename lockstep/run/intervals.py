"""Intervals between events of a run, in steps, once the length of an epoch is known."""

from __future__ import annotations

from lockstep.algorithms.step import RunLength
from lockstep.config import RunSection
from lockstep.errors import InputError


def resolve_intervals(run: RunSection, run_length: RunLength) -> RunSection:
    """The section `run` with `validate_every` in steps, where it is a share of an epoch.

    Raises:
        InputError: The length of an epoch is unknown, or the best checkpoint would be saved without a validation.
    """
    share = run.validate_every
    if isinstance(share, int):
        return run
    if run_length.epoch is None:
        raise InputError(
            f"run.validate_every={share:g} is a share of an epoch, and this algorithm does not say how long an epoch "
            "is; set run.validate_every to a number of steps"
        )
    steps = max(1, round(share * run_length.epoch / run_length.rows_per_step))
    resolved = run.model_copy(update={"validate_every": steps})
    fault = resolved.find_unknown_best()
    if fault is not None:
        raise InputError(f"run.validate_every={share:g} of an epoch is every {steps} steps, and run.{fault}")
    return resolved
