"""The word for a run follows from what its steps logged, and the exit code from the word."""

from __future__ import annotations

from typing import Any

from lockstep.report.agreement import summarize_agreement


def row(step: int, **figures: float) -> dict[str, Any]:
    usual = {
        "tokens": 1000.0,
        "max_abs_logprob_diff": 1e-6,
        "token_mult_prob_error": 1.000001,
        "bound": 1.001,
    }
    return {
        "step": step,
        **{f"agreement/{name}": v for name, v in {**usual, "breach": 0.0, **figures}.items()},
    }


def test_run_without_breach_is_reported_as_agree() -> None:
    found = summarize_agreement(
        [{"step": 0, "validation/reward": 1.0}, row(1), row(2, max_abs_logprob_diff=2e-6)]
    )
    assert (found.word, found.exit_code) == ("AGREE", 0)
    assert found.sentence == (
        "AGREE: 2,000 tokens compared, largest |Δ log-prob| 2.0e-06, mean e^|Δ| at most 1.000001, "
        "bound 1.001"
    )


def test_one_breach_in_any_step_is_a_disagreement() -> None:
    found = summarize_agreement([row(1, breach=1.0, token_mult_prob_error=1.01), row(2)])
    assert (found.word, found.exit_code) == ("DISAGREE", 4)
    assert found.sentence.endswith("at most 1.010000, bound 1.001, exceeded in 1 step")
