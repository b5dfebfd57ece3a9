"""What a step that trained on nothing says of the responses that were taken out of it."""

from __future__ import annotations

import pytest

from lockstep.report.nothing_trained import describe_causes, describe_taken_out

ROW = {"step": 1.0, "train/trained_tokens": 0.0, "train/truncated": 1.0}
CUT = "100% were truncated (raise sampling.max_tokens, or set grpo.overlong_filtering=false)"


@pytest.mark.parametrize(
    ("filters", "more", "told"),
    [
        (False, {"train/no_verdict": 8.0}, "8 had no verdict"),
        (True, {"train/no_verdict": 8.0}, f"{CUT}; 8 had no verdict"),
        (True, {}, CUT),
        (False, {"agreement/sequences_masked": 8.0}, "8 were off the sampler (grpo.max_sequence_mismatch)"),
        (False, {}, "none has a token to learn from"),
    ],
)
def test_only_what_took_responses_out_is_named(filters: bool, more: dict[str, float], told: str) -> None:
    assert describe_taken_out(ROW | more, "grpo", filters) == told
    whole = f"in 1 of 1 steps every response was taken out: {told}"
    assert describe_causes([ROW | more], "grpo", filters) == whole


def test_an_overflow_of_every_update_is_the_cause() -> None:
    told = "in 1 of 1 steps gradients overflowed fp16, so that updates were skipped"
    assert describe_causes([{"step": 1.0, "policy/updates_overflowed": 4.0}], "grpo", False) == told
