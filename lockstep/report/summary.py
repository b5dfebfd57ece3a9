"""What a run came to, on one screen: accuracy before and after, the reward curve, and whether the policies agreed."""

from __future__ import annotations

import math
from pathlib import Path

from lockstep.report.log import read_metrics
from lockstep.report.terminal import curve, summary_table


def summary(folder: Path) -> str:
    """Reads a run's metrics. Returns text for a terminal; ends with the path of the run."""
    rows = read_metrics(folder)
    where = f"run: {folder}\nmodel: {folder / 'final'} (opens with transformers)\nlook at it: lockstep report {folder}"
    parts = [_headline(rows), _drawing(rows), where]
    return "\n\n".join(part for part in parts if part)


def _series(rows: list[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]


def _headline(rows: list[dict[str, float]]) -> str:
    """First and last of what matters, and the worst agreement of all steps."""
    lines: list[tuple[str, str]] = []
    for name, label in (
        ("validation/accuracy", "held-out accuracy"),
        ("validation/reward", "held-out reward"),
        ("validation/loss", "held-out loss"),
        ("validation/acc", "held-out pairs ranked right"),
        ("validation/judge_exact", "known scores that the judge gives"),
        ("validation/meta_judge_accuracy", "known winners that the meta-judge names"),
        ("train/reward", "sampled reward"),
        ("train/response_length", "response length"),
        ("train/loss", "loss"),
        ("policy/loss", "loss"),
    ):
        if name == "policy/loss" and _series(rows, "train/reward"):  # a surrogate, which says nothing by itself
            continue
        series = _series(rows, name)
        if series:
            lines.append((label, f"{series[0]:.3f} → {series[-1]:.3f}"))
    errors, ratios = (_series(rows, f"agreement/{name}") for name in ("max_abs_logprob_diff", "token_mult_prob_error"))
    if errors and ratios:
        ratio = max(ratios)
        lines.append(
            ("training and sampling agree", f"largest |Δ log-prob| {max(errors):.1e}, mean exp|Δ| at most {ratio:.6f}")
        )
    return summary_table(lines)


def _drawing(rows: list[dict[str, float]]) -> str:
    rewards = _series(rows, "train/reward")
    return curve(rewards, "sampled reward per step") if len(rewards) > 1 else ""
