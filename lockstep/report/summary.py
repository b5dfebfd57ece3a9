"""The result of a run on one screen: agreement, held-out figures, alarms, and paths.

Held-out figures are shown before training, after training, and at their best; paths lead to the
report and the model.
"""

from __future__ import annotations

from pathlib import Path

from lockstep.core import exit_codes
from lockstep.report.agreement import read_agreement
from lockstep.report.alarms import find_alarms
from lockstep.report.certificate import CERTIFICATE, ReadCertificate
from lockstep.report.held_out import list_headlines
from lockstep.report.log import read_metrics
from lockstep.report.terminal import summary_table
from lockstep.system.command_line import format_command

PAGE = "report.html"
"""The report of a run, in its folder."""


def summarize_run(folder: Path) -> str:
    """Summarizes a run's metrics.

    Returns text for a terminal; it ends with the paths of the run, its report and its model.
    """
    rows = read_metrics(folder)
    alarms = "\n".join(f"ALARM, {alarm.sentence}" for alarm in find_alarms(rows))
    page = folder / PAGE
    if page.is_file():
        report = f"{page} (opens in a browser)"
    else:
        report = f"not written; run {format_command('report', folder)}"
    final = folder / "final"
    if final.is_dir():
        model = f"{final} (loads with transformers; see its README.md)"
    else:
        model = f"not finished; to write the model so far: {format_command('export', folder)} MODEL"
    paths = f"run: {folder}\nreport: {report}\nmodel: {model}"
    lines: list[tuple[str, str]] = []
    compared = read_agreement(folder)
    certificate = ReadCertificate.from_file(folder / CERTIFICATE)
    if compared is not None:
        lines.append(("training and sampling", compared.sentence))
    if certificate is not None:
        lines.append(("certificate", f"{certificate.sentence} ({folder / CERTIFICATE})"))
    lines += list_headlines(rows)
    overflowed = 0.0
    for row in rows:
        for name, value in row.items():
            if name.endswith("updates_overflowed"):
                overflowed += value
    if overflowed:
        lines.append(("updates skipped", f"{overflowed:.0f} (fp16 gradient overflow)"))
    parts = [summary_table(lines), alarms, paths]
    return "\n\n".join(part for part in parts if part)


def has_trained(folder: Path) -> bool:
    """True if any step of a run has learned something, ignoring weight decay.

    Also true before the first step.
    """
    rows = [row for row in read_metrics(folder) if row["step"] > 0]
    for row in rows:
        for name, value in row.items():
            if name.endswith("grad_norm") and value > 0:
                return True
    return not rows


def find_exit_code(folder: Path) -> int:
    """The exit code of a finished run: a broken promise, nothing learned, or success."""
    compared = read_agreement(folder)
    if compared is not None and compared.exit_code:
        return compared.exit_code
    if has_trained(folder):
        return exit_codes.OK
    return exit_codes.INCONCLUSIVE
