"""Reasons why a step, or a run, has learned from nothing, as its metrics tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Row = Mapping[str, float]

_TAKEN_OUT = {
    "train/truncated": "{:.0%} were truncated (raise sampling.max_tokens, or set {}.overlong_filtering=false)",
    "train/no_verdict": "{:.0f} had no verdict",
    "agreement/sequences_masked": "{:.0f} were off the sampler ({}.max_sequence_mismatch)",
}
"""Metrics that tell why responses were left out of training; the second gap is the algorithm's section."""

_OF_STEPS = ("trained_tokens", "grad_norm", "updates_skipped", "updates_overflowed")


def describe_taken_out(row: Row, section: str, filters_truncated: bool) -> str:
    """Says why the responses of a step were taken out of it.

    Args:
        row: Its metrics.
        section: Key of the algorithm's section.
        filters_truncated: True if truncated responses are taken out.
    """
    causes = {name: text for name, text in _TAKEN_OUT.items() if filters_truncated or name != "train/truncated"}
    found = ((text, row.get(metric)) for metric, text in causes.items())
    told = "; ".join(text.format(count, section) for text, count in found if count)
    return told or "none has a token to learn from"


def describe_causes(rows: Sequence[Row], section: str, filters_truncated: bool) -> str:
    """Says why no step of a run has learned from anything: each cause, and in how many steps it was the one.

    Arguments are those of `describe_taken_out`.
    """
    steps = [row for row in rows if row["step"] > 0 and any(name.endswith(_OF_STEPS) for name in row)]
    causes = Counter(_find_cause(row, section, filters_truncated) for row in steps)
    told = [f"in {count} of {len(steps)} steps {cause}" for cause, count in causes.most_common()]
    return "; ".join(told) or "no step has a gradient"


def _find_cause(row: Row, section: str, filters_truncated: bool) -> str:
    if row.get("train/trained_tokens") == 0:
        return f"every response was taken out: {describe_taken_out(row, section, filters_truncated)}"
    if any(name.endswith("updates_overflowed") for name in row):
        return "gradients overflowed fp16, so that updates were skipped"
    low, high = row.get("train/reward_min"), row.get("train/reward_max")
    if low is not None and low == high:
        return f"all rewards were equal: {low:g}"
    if low is not None:
        return "the rewards of each prompt were equal, or all gradients 0"
    return "all gradients were 0"
