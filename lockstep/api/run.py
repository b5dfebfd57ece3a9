"""A run in Python: the contents of its folder."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.core.errors import InputError

if TYPE_CHECKING:
    from lockstep.report.agreement import AgreementSummary


@dataclass(frozen=True)
class Run:
    """A run's folder; finished, stopped early, or still running in another process.

    Attributes:
        folder: The folder.
    """

    folder: Path

    @property
    def is_finished(self) -> bool:
        """True if the run has finished."""
        return self.model.is_dir()

    @property
    def model(self) -> Path:
        """The trained model, a Hugging Face folder; it exists once the run is finished."""
        return self.folder / "final"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """A row for each step and validation, `step` first; use `pandas.DataFrame(run.metrics)`."""
        from lockstep.report.log import read_metrics

        return read_metrics(self.folder)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Steps and values of one metric.

        Raises:
            InputError: The run has no such metric; names the nearest.
        """
        from lockstep.report.log import suggest_metric

        rows = self.metrics
        points = [(int(row["step"]), row[metric]) for row in rows if metric in row]
        if not points:
            names = sorted(set[str]().union(*rows))
            raise InputError(
                f"{self.folder} does not log {metric}; {suggest_metric(metric, names)}"
            )
        return points

    @property
    def samples(self) -> Iterator[dict[str, Any]]:
        """Logged rollouts: step, prompt, response, reward, token by token."""
        from lockstep.report.log import SAMPLES, read_lines

        return (row for row, _ in read_lines(self.folder / SAMPLES))

    @property
    def best(self) -> Path | None:
        """The best saved checkpoint by `run.best`; None if the recipe sets no metric."""
        from lockstep.run.checkpoint.checkpoints import CheckpointStore

        ranked = CheckpointStore(self.folder / "checkpoints", keep=1).rank_by_score()
        if ranked:
            return ranked[-1][2]
        return None

    @property
    def agreement(self) -> AgreementSummary | None:
        """Agreement of sampler and learner over all steps; None for algorithms without sampling."""
        from lockstep.report.agreement import read_agreement

        return read_agreement(self.folder)

    @property
    def summary(self) -> str:
        """The final summary of a run; it ends with a note if there was nothing to learn from."""
        from lockstep.report.summary import summarize_run
        from lockstep.run.train import describe_nothing_trained

        parts = summarize_run(self.folder), describe_nothing_trained(self.folder)
        return "\n\n".join(part for part in parts if part is not None)

    def report(self) -> Path:
        """Writes the report, one HTML file, and returns its path."""
        from lockstep.report.html import write_report
        from lockstep.report.summary import PAGE

        out = self.folder / PAGE
        write_report([self.folder], out)
        return out

    def _repr_html_(self) -> str:
        """The headline curve and a collapsed summary, for notebooks."""
        from lockstep.report.picture import draw_headline

        folder = html.escape(str(self.folder))
        summary = f"<summary>{folder}</summary><pre>{html.escape(self.summary)}</pre>"
        return f"{draw_headline(self.metrics)}<details>{summary}</details>"
