"""The result of a run on one screen: a curve, whether training and sampling agreed, held-out figures before, after and
at their best, what the critic explains, the report's alarms, and where report and model are."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

from lockstep import exit_codes
from lockstep.command_line import command
from lockstep.report.agreement import AgreementSummary, read_agreement
from lockstep.report.alarms import find_alarms
from lockstep.report.certificate import describe_certificate
from lockstep.report.held_out import HELD_OUT, Figure, best, figures, from_to
from lockstep.report.judge_reward import describe_judges
from lockstep.report.log import read_metrics
from lockstep.report.terminal import curve, summary_table

PAGE = "report.html"
"""The report of a run, in its folder."""

_POINTS = 5  # validations that make a curve
_LATEST = 0.2  # share of the steps, the latest, by which the critic is judged


def summary(folder: Path, kept: Collection[int]) -> str:
    """Reads a run's metrics. Returns text for a terminal; ends with the paths of the run, its report and its model.

    Args:
        folder: Folder of the run.
        kept: Steps whose checkpoints are there.
    """
    rows = read_metrics(folder)
    alarms = "\n".join(f"ALARM, {alarm.sentence}" for alarm in find_alarms(rows))
    judges = "\n".join(describe_judges(folder))
    parts = [_drawing(rows), _headline(folder, rows, kept, read_agreement(folder)), judges, alarms, _where(folder)]
    return "\n\n".join(part for part in parts if part)


def has_trained(folder: Path) -> bool:
    """True if a step of a run has learned from anything, weight decay aside; also where there has been no step yet."""
    rows = [row for row in read_metrics(folder) if row["step"] > 0]
    norms = [value for row in rows for name, value in row.items() if name.endswith("grad_norm")]
    return not rows or any(norm > 0 for norm in norms)


def judge(folder: Path) -> int:
    """The exit code of a finished run: of a promise that was broken, of nothing learned, or of success."""
    compared = read_agreement(folder)
    if compared is not None and compared.exit_code:
        return compared.exit_code
    return exit_codes.OK if has_trained(folder) else exit_codes.INCONCLUSIVE


def _series(rows: list[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]


def _where(folder: Path) -> str:
    page = folder / PAGE
    report = f"{page} (opens in a browser)" if page.is_file() else f"not written; {command('report', folder)} does that"
    return f"run: {folder}\nreport: {report}\nmodel: {folder / 'final'} (opens with transformers: see its README.md)"


def _headline(
    folder: Path, rows: list[dict[str, float]], kept: Collection[int], compared: AgreementSummary | None
) -> str:
    """The verdict on training and sampling, and first, last and best of the headlines."""
    lines: list[tuple[str, str]] = []
    if compared is not None:
        lines.append(("training and sampling", compared.sentence))
    certificate = describe_certificate(folder)
    if certificate is not None:
        lines.append(("certificate", certificate))
    for name, (label, better) in HELD_OUT.items():
        series = figures(rows, name)
        if series:
            lines.append((label, from_to(series)))
        if len(series) > 1:
            lines.append(("  best", _best(folder, best(series, better), series[-1].step, kept)))
    for name, label in (
        ("validation/judge_exact", "known scores that the judge gives"),
        ("validation/meta_judge_accuracy", "known winners that the meta-judge names"),
        ("train/reward", "sampled reward"),
        *((name, f"  {name.partition('/')[2]}") for name in sorted(_parts(rows))),
        ("train/shaped_reward", "what is maximized: reward, shaped, less β·KL"),
        ("train/kl", "KL from the reference, per token"),
        ("train/response_length", "response length"),
        ("train/turns", "turns of an episode"),
        ("train/truncated", "share of responses that were cut off"),
        ("train/loss", "loss"),
        ("policy/loss", "loss"),
    ):
        if name == "policy/loss" and _series(rows, "train/reward"):  # a surrogate, which means nothing by itself
            continue
        if name == "train/shaped_reward" and _series(rows, name) == _series(rows, "train/reward"):
            continue
        if name == "train/truncated" and not any(_series(rows, name)):
            continue
        series = figures(rows, name)
        if series:
            lines.append((label, from_to(series)))
    overflowed = sum(value for row in rows for name, value in row.items() if name.endswith("updates_overflowed"))
    if overflowed:
        lines.append(("updates skipped", f"{overflowed:.0f}, whose gradients overflowed fp16"))
    explained = figures(rows, "critic/explained_variance")
    if explained:
        lines.append(("critic", _judge(explained)))
    return summary_table(lines)


def _parts(rows: list[dict[str, float]]) -> set[str]:
    """The metrics of a sum's rewards."""
    return {name for row in rows for name in row if name.startswith("reward/")} - {"reward/tampering"}


def _judge(series: list[Figure]) -> str:
    """The part of the variance of the returns that the critic's values explain in the latest steps."""
    latest = series[-math.ceil(len(series) * _LATEST) :]
    mean = sum(figure.value for figure in latest) / len(latest)
    when = f"in the last {len(latest)} steps" if len(latest) > 1 else "in the last step"
    if mean > 0:
        return f"explains {mean:.1%} of the variance of the returns {when}"
    return f"explains nothing of the returns {when}: explained variance {mean:.3f}, their mean alone would have 0"


def _best(folder: Path, found: Figure, last: int, kept: Collection[int]) -> str:
    """The best figure, its step, and whether that model is kept."""
    at = f"{found.text()} at step {found.step}"
    if found.step == 0:
        return f"{at}, before training"
    if found.step == last:
        return f"{at}, the last"
    if found.step in kept:
        out = folder / f"step-{found.step}"
        return f"{at}, whose checkpoint is kept ({command('export', folder, out, '--checkpoint', found.step)})"
    return f"{at}, whose checkpoint is not kept (run.best keeps the best of those that run.save_every saves)"


def _drawing(rows: list[dict[str, float]]) -> str:
    """A curve of what was held out, if that was measured often enough: sampled rewards may be mostly luck."""
    for name, (label, better) in HELD_OUT.items():
        held = figures(rows, name)
        if better == "higher" and len(held) >= _POINTS:
            return curve(
                [figure.value for figure in held], f"{label} over steps", steps=[figure.step for figure in held]
            )
    rewards = _series(rows, "train/reward")
    return curve(rewards, "sampled reward per step") if len(rewards) > 1 else ""
