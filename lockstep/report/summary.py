"""The result of a run on one screen: accuracy before, after and at its best, the reward curve, and whether the policies
agreed."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

from lockstep.report.agreement import AgreementSummary, read_agreement
from lockstep.report.held_out import HELD_OUT, Figure, best, figures, from_to
from lockstep.report.log import read_metrics
from lockstep.report.terminal import curve, summary_table


def summary(folder: Path, kept: Collection[int]) -> str:
    """Reads a run's metrics. Returns text for a terminal; ends with the path of the run.

    Args:
        folder: Folder of the run.
        kept: Steps whose checkpoints are there.
    """
    rows = read_metrics(folder)
    where = f"run: {folder}\nmodel: {folder / 'final'} (opens with transformers)\nlook at it: lockstep report {folder}"
    parts = [_headline(rows, kept, read_agreement(folder)), _drawing(rows), where]
    return "\n\n".join(part for part in parts if part)


def has_trained(folder: Path) -> bool:
    """True if a step of a run has learned from anything, weight decay aside; also where there has been no step yet."""
    rows = [row for row in read_metrics(folder) if row["step"] > 0]
    norms = [value for row in rows for name, value in row.items() if name.endswith("grad_norm")]
    return not rows or any(norm > 0 for norm in norms)


def _series(rows: list[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]


def _headline(rows: list[dict[str, float]], kept: Collection[int], compared: AgreementSummary | None) -> str:
    """First, last and best of the headlines, and whether both sides agreed in all steps."""
    lines: list[tuple[str, str]] = []
    for name, (label, better) in HELD_OUT.items():
        series = figures(rows, name)
        if series:
            lines.append((label, from_to(series)))
        if len(series) > 1:
            lines.append(("  best", _best(best(series, better), series[-1].step, kept)))
    for name, label in (
        ("validation/judge_exact", "known scores that the judge gives"),
        ("validation/meta_judge_accuracy", "known winners that the meta-judge names"),
        ("train/reward", "sampled reward"),
        ("train/shaped_reward", "what is maximized: reward, shaped, less β·KL"),
        ("train/kl", "KL from the reference, per token"),
        ("train/response_length", "response length"),
        ("train/loss", "loss"),
        ("policy/loss", "loss"),
    ):
        if name == "policy/loss" and _series(rows, "train/reward"):  # a surrogate, which means nothing by itself
            continue
        if name == "train/shaped_reward" and _series(rows, name) == _series(rows, "train/reward"):
            continue
        series = figures(rows, name)
        if series:
            lines.append((label, from_to(series)))
    if compared is not None:
        lines.append(("training and sampling", compared.sentence))
    return summary_table(lines)


def _best(found: Figure, last: int, kept: Collection[int]) -> str:
    """The best figure, its step, and whether that model is kept."""
    at = f"{found.text()} at step {found.step}"
    if found.step == 0:
        return f"{at}, before training"
    if found.step == last:
        return f"{at}, the last"
    if found.step in kept:
        return f"{at}, whose checkpoint is kept (lockstep export --checkpoint {found.step})"
    return f"{at}, whose checkpoint is not kept (run.best keeps the best of those that run.save_every saves)"


def _drawing(rows: list[dict[str, float]]) -> str:
    rewards = _series(rows, "train/reward")
    return curve(rewards, "sampled reward per step") if len(rewards) > 1 else ""
