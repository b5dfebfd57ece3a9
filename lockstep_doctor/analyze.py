"""The analysis of two columns of log-probabilities without a model, in words: figures, and what they look like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lockstep_doctor.column import Finding
from lockstep_doctor.column.columns import SIDES

_SHOWN = (
    ("token_mult_prob_error", "mean e^abs(Δ)"),
    ("capped_mult_prob_error", "the same, abs(Δ) counting at most 3"),
    ("k1", "KL(inference ‖ training), k1: mean −Δ"),
    ("k1_se", "standard error of k1, over sequences"),
    ("k3", "KL(inference ‖ training), k3"),
    ("mean_ratio", "mean e^Δ: 1 if both are distributions, and inference's was drawn from"),
    ("mean_ratio_se", "its standard error, over sequences"),
    ("rms", "root mean square of Δ"),
    ("trimmed_rms", "the same without the 5 % of tokens that are farthest off"),
    ("median_abs", "median abs(Δ)"),
    ("p99", "99 % of tokens are within"),
    ("p999", "99.9 % of tokens are within"),
    ("max_abs", "largest abs(Δ)"),
    ("outlier_rate_1", "share of tokens off by more than 1 nat"),
    ("sequence_ess", "effective share of sequences, by importance weights"),
    ("slope", "slope of Δ on log-probability"),
    ("correlation", "correlation of the two sides"),
    ("support_violations_train", "tokens with no probability on the training side"),
    ("support_violations_infer", "tokens with no probability on the inference side"),
)


def describe_figures(numbers: Mapping[str, float]) -> str:
    """Returns figures as a table of Markdown."""
    return markdown_table(("figure", "", "value"), ((name, what, f"{numbers[name]:.4g}") for name, what in _SHOWN))


def describe_findings(findings: Iterable[Finding]) -> Iterator[str]:
    """Yields what was found, line by line, and what usually leaves such marks; none of it is proven to be the cause."""
    for one in findings:
        side = "" if one.side is None else f" ({SIDES[one.side]} side)"
        yield f"**{one.kind}**{side}: {one.what}."
        yield ""
        yield f"- {one.tokens_in_words}; {one.share:.0%} of the squares of Δ"
        yield from (f"- consistent with {cause}" for cause in one.consistent)
        yield ""
    yield "Marks prove nothing: `lockstep doctor locate` looks for the place in the models themselves."


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
